#include "base/logging/patient_write.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace kvhive {

PatientlyWritten write_patiently(int fd, std::string_view text,
                                 std::chrono::milliseconds patience) {
  PatientlyWritten done;
  while (done.bytes < text.size()) {
    pollfd room{fd, POLLOUT, 0};
    const int ready = poll(&room, 1, static_cast<int>(patience.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return {done.bytes, ETIMEDOUT};
    const ssize_t wrote = write(fd, text.data() + done.bytes, text.size() - done.bytes);
    // EAGAIN: the descriptor does not block, and another process took the room.
    if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (wrote < 0) return {done.bytes, errno};
    done.bytes += static_cast<std::size_t>(wrote);
  }
  return done;
}

}  // namespace kvhive
