#include "base/memory/memory_object.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <cerrno>

#include "base/byte_size.hpp"

namespace kvhive {

namespace bip = boost::interprocess;

namespace {

// MappedMemory::map() refuses memory that somebody could resize.
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// A file as boost::interprocess::mapped_region takes it.
struct BoostHandle {
  int fd;
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#endif

/// At an address that huge pages can have, if there is one.
Expected<bip::mapped_region> map_region(int fd, std::size_t bytes, Access access,
                                        const std::string& name) {
  const auto mode = access == Access::read_only ? bip::read_only : bip::read_write;
  if (void* place = aligned_place(bytes); place != nullptr) {
    try {
      return bip::mapped_region(BoostHandle{fd}, mode, 0, bytes, place);
    } catch (const bip::interprocess_exception&) {  // the range was taken: map anywhere
    }
  }
  try {
    return bip::mapped_region(BoostHandle{fd}, mode, 0, bytes);
  } catch (const bip::interprocess_exception& exception) {
    return failure(Errc::os_error,
                   "map " + name + " (" + format_bytes(bytes) + "): " + exception.what());
  }
}

Expected<void> add_seals(int fd, int seals, const std::string& name) {
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return os_failure("seal " + name);
  return {};
}

}  // namespace

Expected<UniqueFd> open_memory(const std::string& name) {
  UniqueFd fd{memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd) return os_failure("memfd_create " + name);
  if (fchmod(fd.get(), 0600) != 0) return os_failure("fchmod " + name);
  return fd;
}

Expected<void> allocate_memory(const UniqueFd& fd, std::size_t from, std::size_t to,
                               std::size_t whole, const std::string& name) {
  int code;
  do code = posix_fallocate(fd.get(), static_cast<off_t>(from), static_cast<off_t>(to - from));
  while (code == EINTR);
  if (code == 0) return {};
  if (code == ENOSPC || code == ENOMEM)
    return failure(Errc::out_of_memory,
                   "no room for " + format_bytes(whole) + " of shared memory (" + name +
                       "); ask for less, or raise the limit of the machine or cgroup");
  errno = code;
  return os_failure("fallocate " + name + " (" + format_bytes(whole) + ")");
}

Expected<void> seal_memory(const UniqueFd& fd, const std::string& name) {
  return add_seals(fd.get(), kSizeSeals | F_SEAL_SEAL, name);
}

Expected<UniqueFd> create_memory(const std::string& name, std::size_t bytes, Pages pages,
                                 const GoesOn& goes_on) {
  constexpr std::size_t kStep = std::size_t{256} << 20;  // 0.1 s
  auto fd = open_memory(name);
  if (!fd) return fd;
  if (pages == Pages::huge) take_huge_pages(fd->get(), bytes, clearing_threads(bytes), goes_on);
  std::size_t from = 0;
  do {
    if (goes_on && !goes_on()) return UniqueFd();
    const std::size_t to = std::min(from + kStep, bytes);
    if (auto allocated = allocate_memory(*fd, from, to, bytes, name); !allocated)
      return forward_error(allocated);
    from = to;
  } while (from < bytes);
  if (auto sealed = seal_memory(*fd, name); !sealed) return forward_error(sealed);
  return fd;
}

Expected<UniqueFd> create_empty_memory(const std::string& name, std::size_t bytes) {
  auto fd = open_memory(name);
  if (!fd) return fd;
  if (ftruncate(fd->get(), static_cast<off_t>(bytes)) != 0) return os_failure("ftruncate " + name);
  if (auto sealed = add_seals(fd->get(), kSizeSeals, name); !sealed) return forward_error(sealed);
  return fd;
}

Expected<void> seal_against_new_writers(int fd, const std::string& name) {
  return add_seals(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, name);
}

bool is_sealed_against_new_writers(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0;
}

void free_memory(const UniqueFd& fd, std::size_t from, std::size_t to) {
  (void)fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                  static_cast<off_t>(to - from));
}

Expected<UniqueFd> reopen_read_only(int fd) {
  UniqueFd reopened{open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!reopened) return os_failure("reopen shared memory read-only");
  return reopened;
}

Expected<MappedMemory> MappedMemory::map(int fd, std::size_t bytes, Access access,
                                         const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return os_failure("fstat " + name);
  if (static_cast<std::size_t>(status.st_size) != bytes)
    return failure(Errc::layout_mismatch, name + " has " + std::to_string(status.st_size) +
                                              " bytes, expected " + std::to_string(bytes) +
                                              "; both sides must be of the same build");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return failure(Errc::bad_format, name + " is not sealed against resizing; refusing to map it");

  auto region = map_region(fd, bytes, access, name);
  if (!region) return forward_error(region);
  MappedMemory memory;
  memory.access_ = access;
  memory.region_ = std::move(*region);
  // A dump of gigabytes would keep a dying process, and its blocks, for many seconds, and would put
  // what all users have sent into a file.
  if (memory.size() != 0) madvise(memory.data(), memory.size(), MADV_DONTDUMP);
  return memory;
}

/// Reads every page, although the caller will write them: a page of shared memory that was mapped
/// by a read can be written without another fault, and for reads the kernel maps 16 pages per
/// fault.
void MappedMemory::populate() const {
  if (size() != 0) madvise(data(), size(), MADV_POPULATE_READ);
}

void MappedMemory::prefer_huge_pages() const {
  if (size() != 0) madvise(data(), size(), MADV_HUGEPAGE);
}

Expected<void> MappedMemory::lock() const {
  if (size() == 0 || mlock(data(), size()) == 0) return {};
  return os_failure("lock " + std::to_string(size()) +
                    " bytes of memory; the limit of locked memory (ulimit -l) may be too low");
}

void MappedMemory::hide_from_children() const {
  if (size() != 0) madvise(data(), size(), MADV_DONTFORK);
}

}  // namespace kvhive
