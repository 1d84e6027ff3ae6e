#pragma once
// Writes to a descriptor whose reader may be stuck: a pipe that nobody reads, a terminal that is
// held by Ctrl-S.

#include <chrono>
#include <cstddef>
#include <string_view>

namespace kvhive {

/// How far write_patiently() came.
struct PatientlyWritten {
  std::size_t bytes = 0;  ///< of the text
  int error = 0;          ///< errno; ETIMEDOUT = there was no room within `patience`; 0 = all done
};

/// Writes `text` to `fd`, in one write() if there is room for it. Waits for room at most `patience`
/// at a time; a negative one has no end. The text should have at most PIPE_BUF (4,096) bytes: a
/// longer one can still block in a pipe that has less room than it needs. SIGPIPE must be ignored
/// or blocked.
[[nodiscard]] PatientlyWritten write_patiently(int fd, std::string_view text,
                                               std::chrono::milliseconds patience);

}  // namespace kvhive
