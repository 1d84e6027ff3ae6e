#pragma once
// Standard output is buffered: a full disk or a closed pipe shows only when the buffer is written.
// Every program calls flush_output() before it ends, so that what it printed has arrived, or it
// says so.

#include "base/expected.hpp"

namespace kvhive {

/// Writes out what is buffered. Errors: Errc::peer_died if the reader of a pipe is gone (EPIPE),
/// Errc::os_error for everything else. A failure is reported once.
[[nodiscard]] Expected<void> flush_output();

}  // namespace kvhive
