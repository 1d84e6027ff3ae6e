#pragma once
// Memory that never arrives. A process that writes to a file from it keeps the file locked in the
// kernel (the inode lock) until it is killed.

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.hpp"
#include "base/unique_fd.hpp"

namespace kvhive::testing {

/// Who reads it waits until this process ends. It is userfaultfd's, which is root's; any user can
/// have such memory where FUSE can be had.
inline std::span<std::byte> memory_that_never_arrives() {
  const int handler = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  KV_CHECK(handler >= 0, errno);
  uffdio_api api{UFFD_API, 0, 0};
  KV_CHECK(ioctl(handler, UFFDIO_API, &api) == 0, errno);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register range{
      {reinterpret_cast<std::uint64_t>(page), 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
  KV_CHECK(ioctl(handler, UFFDIO_REGISTER, &range) == 0, errno);
  return {static_cast<std::byte*>(page), 4096};
}

inline bool can_make_memory_that_never_arrives() {
  return bool(UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC))));
}
inline constexpr const char* kForbidsUserfaultfd =
    "NOT RUN: the system forbids userfaultfd; allow it";

}  // namespace kvhive::testing
