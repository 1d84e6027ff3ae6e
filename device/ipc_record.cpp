#include "device/ipc_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.hpp"

namespace kvhive {
namespace {

constexpr std::uint64_t kMagic = 0x6370'6965'7669'686bull;  // "khiveipc"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

struct Record {
  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;
  std::array<char, 64> gpu{};  ///< ends with a zero
  IpcHandle handle{};
};
static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) == 144);

}  // namespace

Expected<UniqueFd> write_ipc_record(const IpcHandle& handle, std::size_t bytes,
                                    const std::string& gpu) {
  Record record;
  record.bytes = bytes;
  record.handle = handle;
  KV_CHECK(gpu.size() < record.gpu.size(), gpu);
  std::memcpy(record.gpu.data(), gpu.data(), gpu.size());
  UniqueFd fd{memfd_create("kvhive-ipc-record", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd || fchmod(fd.get(), 0600) != 0) return os_failure("memfd_create kvhive-ipc-record");
  if (pwrite(fd.get(), &record, sizeof record, 0) != sizeof record)
    return os_failure("write kvhive-ipc-record");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return os_failure("seal kvhive-ipc-record");
  return fd;
}

bool is_ipc_record(int fd) {
  struct stat status {};
  const int seals = fcntl(fd, F_GET_SEALS);  // the kernel may have added one (vm.memfd_noexec)
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(fd, &status) == 0 &&
         status.st_size == sizeof(Record);
}

Expected<IpcHandle> read_ipc_record(int fd, std::size_t bytes, const std::string& gpu) {
  Record record;
  if (!is_ipc_record(fd) || pread(fd, &record, sizeof record, 0) != sizeof record ||
      record.magic != kMagic || record.gpu.back() != '\0')
    return failure(Errc::bad_format,
                   "this descriptor is not a record of GPU memory; use programs of the same build");
  if (record.bytes != bytes)
    return failure(Errc::layout_mismatch, "a GPU's memory has " + std::to_string(record.bytes) +
                                              " bytes, expected " + std::to_string(bytes) +
                                              "; both sides must be of the same build");
  if (gpu != record.gpu.data())
    return failure(
        Errc::layout_mismatch,
        "the memory is on " + std::string(record.gpu.data()) + ", this process on " + gpu +
            "; give it that GPU as its first: CUDA_VISIBLE_DEVICES=" + record.gpu.data());
  return record.handle;
}

}  // namespace kvhive
