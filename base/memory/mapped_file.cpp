#include "base/memory/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvhive {
namespace {

/// Maps an open regular file; the mapping outlives the descriptor.
Expected<std::span<const std::byte>> map(int descriptor, const std::string& name) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return os_failure(name + ": fstat");
  if (!S_ISREG(status.st_mode)) return failure(Errc::bad_format, name + ": not a regular file");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return std::span<const std::byte>{};
  void* start = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (start == MAP_FAILED) return os_failure(name + ": mmap");
  // A hint: a file system that has huge pages then fills them when the file is first read, and
  // weights need few page walks.
  ::madvise(start, bytes, MADV_HUGEPAGE);
  return std::span(static_cast<const std::byte*>(start), bytes);
}

}  // namespace

Expected<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT)
      return failure(
          Errc::not_found,
          path.string() +
              ": no such file; check the directory, or fetch the model or adapter again");
    return os_failure(path.string() + ": open");
  }
  auto bytes = map(descriptor, path.string());
  ::close(descriptor);
  if (!bytes) return forward_error(bytes);
  return MappedFile(*bytes);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace kvhive
