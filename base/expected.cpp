#include "base/expected.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace kvhive {

namespace {

/// For errors that a limit causes: which limit it is, and how to raise it.
std::string remedy_for(int code) {
  if (code == ENFILE)
    return "; the machine has no file descriptor left (/proc/sys/fs/file-max): raise it, or end "
           "other programs";
  if (code == ETOOMANYREFS)
    return "; this user's processes have sent each other more file descriptors than one may have "
           "(ulimit -n): raise the limit, or end a process that does not receive its own";
  if (code == EACCES)
    return "; this process is user " + std::to_string(geteuid()) +
           ": give that user the right, run as another user, or name another place";
  if (code != EMFILE) return {};
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return "; this process may have " + std::to_string(limit.rlim_cur) +
         " file descriptors (ulimit -n): raise the limit, or close others";
}

}  // namespace

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::none: return "none";
    case Errc::bad_argument: return "bad_argument";
    case Errc::not_found: return "not_found";
    case Errc::bad_format: return "bad_format";
    case Errc::unsupported: return "unsupported";
    case Errc::pool_exhausted: return "pool_exhausted";
    case Errc::never_fits: return "never_fits";
    case Errc::out_of_memory: return "out_of_memory";
    case Errc::too_many_processes: return "too_many_processes";
    case Errc::layout_mismatch: return "layout_mismatch";
    case Errc::already_running: return "already_running";
    case Errc::not_running: return "not_running";
    case Errc::device_lost: return "device_lost";
    case Errc::peer_died: return "peer_died";
    case Errc::os_error: return "os_error";
    case Errc::overloaded: return "overloaded";
    case Errc::not_held: return "not_held";
  }
  return "unknown";
}

tl::unexpected<Error> os_failure(std::string_view what) {
  const int code = errno;
  return failure(Errc::os_error, std::string(what) + ": " + std::generic_category().message(code) +
                                     remedy_for(code));
}

}  // namespace kvhive
