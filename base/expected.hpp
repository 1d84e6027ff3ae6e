#pragma once
// How foreseeable failures travel: a value or an Error, never an exception (std::expected needs
// C++23, which nvcc 13 lacks).

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace kvhive {

/// One code per thing a caller can do about it.
enum class Errc : std::uint8_t {
  none = 0,
  bad_argument,  ///< user: a flag, field or message is out of range; the text names field, value
                 ///< and remedy
  not_found,     ///< user: a file, directory, tensor or engine does not exist
  bad_format,   ///< user: a file or message is not what it should be (truncated, unknown key, wrong
                ///< magic)
  unsupported,  ///< user: recognised, but kvhive cannot do it (yet); the text says what can be done
                ///< instead
  pool_exhausted,  ///< engine: not enough free blocks now; preempt or wait
  never_fits,      ///< client: the request cannot be served by this pool or model whatever happens
  out_of_memory,   ///< operator: the machine or a limit has less memory than asked for
  too_many_processes,  ///< operator: all process slots of the pool are taken
  layout_mismatch,     ///< operator: the two sides were built or configured differently; both are
                       ///< named
  already_running,     ///< operator: another daemon owns this socket
  not_running,         ///< user: nobody listens on this socket
  device_lost,         ///< engine: the GPU's context is gone; publish nothing, end the process
  peer_died,           ///< anybody: the process at the other end is gone
  os_error,  ///< operator: a system call failed; the text carries its name and errno's words
};

/// The code's name as it is printed and sent ("pool_exhausted").
std::string_view to_string(Errc code);

/// A failure in one line: what, which value, what to do.
struct Error {
  Errc code = Errc::none;
  std::string text;
};

template <class T>
using Expected = tl::expected<T, Error>;

inline tl::unexpected<Error> failure(Errc code, std::string text) {
  return tl::unexpected<Error>(Error{code, std::move(text)});
}

/// `what: strerror(errno)`, for a system call that just failed.
tl::unexpected<Error> os_failure(std::string_view what);

/// Passes the error of one Expected on as that of another.
template <class T>
tl::unexpected<Error> forward_error(Expected<T>& failed) {
  return tl::unexpected<Error>(std::move(failed.error()));
}
template <class T>
tl::unexpected<Error> forward_error(const Expected<T>& failed) {
  return tl::unexpected<Error>(failed.error());
}

}  // namespace kvhive
