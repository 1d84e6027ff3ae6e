#pragma once
// The result type of functions that can fail for a foreseeable reason: a value or an Error, never
// an exception. It is tl::expected, because std::expected needs C++23, which nvcc 13 does not
// compile.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace kvhive {

/// Error codes, one per way in which a caller can react. The word before the colon says who has to
/// act.
enum class Errc : std::uint8_t {
  none = 0,
  bad_argument,  ///< user: a flag, field or message is out of range; the text names field, value
                 ///< and remedy
  not_found,     ///< user: a file, directory, tensor or engine does not exist
  bad_format,    ///< user: a file or message has the wrong format (truncated, unknown key, wrong
                 ///< magic)
  unsupported,   ///< user: kvhive knows the feature but does not support it; the text says what to
                 ///< do instead
  pool_exhausted,      ///< engine: not enough free blocks now; preempt or wait
  never_fits,          ///< client: the request is too large for this pool or model, at any time
  out_of_memory,       ///< operator: the machine or a limit has less memory than asked for
  too_many_processes,  ///< operator: all process slots of the pool are taken
  layout_mismatch,     ///< operator: the two sides were built or configured differently; both are
                       ///< named
  already_running,     ///< operator: another daemon listens on this socket
  not_running,         ///< user: no daemon listens on this socket, or it is not ready
  device_lost,         ///< engine: the GPU's context is lost; publish nothing, end the process
  peer_died,           ///< any process: the process at the other end is gone
  os_error,    ///< operator: a system call failed; the text carries its name and errno's words
  overloaded,  ///< client: too much is waiting already; try again after Error::retry_after
  not_held,    ///< caller: what is to be released is not held, or was released before
};

/// The code's name as it is printed and sent ("pool_exhausted").
std::string_view to_string(Errc code);

/// An error. The text is one line: what is wrong, with which value, and what to do.
struct Error {
  Errc code = Errc::none;
  std::string text;
  std::chrono::milliseconds retry_after{0};  ///< 0 = nobody knows, or it is no use
};

template <class T>
using Expected = tl::expected<T, Error>;

inline tl::unexpected<Error> failure(Errc code, std::string text) {
  return tl::unexpected<Error>(Error{code, std::move(text)});
}

/// The error of a system call that has just failed: `what: strerror(errno)`.
tl::unexpected<Error> os_failure(std::string_view what);

/// Moves the error out of one Expected, to return it as another type of Expected.
template <class T>
tl::unexpected<Error> forward_error(Expected<T>& failed) {
  return tl::unexpected<Error>(std::move(failed.error()));
}
template <class T>
tl::unexpected<Error> forward_error(const Expected<T>& failed) {
  return tl::unexpected<Error>(failed.error());
}

}  // namespace kvhive
