#include "tools/program/output.hpp"

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace kvhive {

Expected<void> flush_output() {
  errno = 0;  // std::cout has no buffer of its own: it writes into stdout's
  const bool had_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !had_failed) return {};
  const int code = errno;
  std::clearerr(stdout);
  if (code == EPIPE)
    return failure(Errc::peer_died, "standard output: the reader of the pipe is gone");
  return failure(Errc::os_error, "standard output could not be written: " +
                                     (code == 0 ? std::string("some of it is missing")
                                                : std::generic_category().message(code)));
}

}  // namespace kvhive
