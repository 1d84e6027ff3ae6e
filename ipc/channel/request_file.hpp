#pragma once
// An engine's view of the file that a channel's client writes. An engine reads it by system calls
// and does not map it. A page fault in a hole would give the hole memory, and the engine would pay
// for it. And it would wait for whoever punches holes into the file, a quarter of a second for half
// a gigabyte; a client's seal forbids that, but then nothing depends on it. A read takes what is
// there, and zeros for holes. It does not take the file's lock. It takes that of a page, which a
// client cannot keep: the file is sealed, and its pages are pinned
// (tools/keeper/channels/page_pins.hpp).
// \source  Linux, mm/shmem.c: shmem_fault() waits for shmem_fallocate(), shmem_file_read_iter()
//          does not

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class RequestFile {
 public:
  /// \param bytes  the file's size. If it is smaller, reads beyond its end fail
  RequestFile(UniqueFd file, std::size_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  std::size_t size() const { return bytes_; }

  /// Copies the bytes from `offset` on. The client may change them at the same time.
  [[nodiscard]] Expected<void> read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t got = pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return os_failure("read a channel's requests");
      if (got == 0) return failure(Errc::bad_format, "the channel's requests end too early");
      to = to.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  UniqueFd take() { return std::move(file_); }

 private:
  UniqueFd file_;
  std::size_t bytes_;
};

}  // namespace kvhive
