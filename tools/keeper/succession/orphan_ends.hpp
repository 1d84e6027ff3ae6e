#pragma once
// How processes ended that an earlier keeper had started. Only a parent is told that by waitpid(),
// and theirs is the front now, which writes it into the ledger. (The kernel has it in /proc, too,
// but not for everybody, and whom it does not tell reads 0.)

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvhive {

/// Whether a process is not this one's child.
bool is_orphan(pid_t pid);

/// The last ones. In the ledger's memory; written by the front alone.
class OrphanEnds {
 public:
  /// \param status  as waitpid() tells it
  void write(pid_t pid, int status) {
    const std::uint64_t end = std::uint64_t(pid) << 32 | static_cast<std::uint32_t>(status);
    ends_[count_ % kKept] = end;
    ++count_;
  }
  /// Nothing = the front has not seen its end.
  std::optional<int> status_of(pid_t pid) const;

 private:
  static constexpr std::uint32_t kKept = 64;
  std::array<std::atomic<std::uint64_t>, kKept> ends_{};
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace kvhive
