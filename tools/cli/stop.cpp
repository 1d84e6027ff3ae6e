// kvhive stop: ends a running daemon and waits until it is gone.

#include <signal.h>

#include <cstdio>
#include <memory>

#include "ipc/pidfd.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/inspector.hpp"

namespace kvhive {
namespace {

Expected<void> stop(const CommonFlags& flags) {
  const auto found = find_daemon(flags.socket_path());
  if (!found) return forward_error(found);
  const pid_t pid = found->daemon;
  if (pid == 0)
    return failure(Errc::unsupported,
                   "kvhived runs in a PID namespace that this process cannot see; stop it there");
  if (is_stopped(pid))  // a stopped process hears no signal but one
    return failure(Errc::not_running, "kvhived (process " + std::to_string(pid) +
                                          ") is stopped; let it go on with kill -CONT " +
                                          std::to_string(pid));
  auto pidfd = pidfd_of(pid);
  if (!pidfd) return forward_error(pidfd);
  if (auto sent = signal_by_pidfd(*pidfd, SIGTERM); !sent) return forward_error(sent);
  if (!wait_for_end(*pidfd, 30'000))
    return failure(Errc::os_error,
                   "the daemon (pid " + std::to_string(pid) +
                       ") was asked to stop 30 s ago and still runs; to end it by force, kill its "
                       "front and its keeper at once: kill -9 " +
                       std::to_string(pid) + " " + std::to_string(found->keeper));
  if (flags.output() == Format::json)
    std::printf("{\"stopped\": %d}\n", pid);
  else
    std::printf("stopped kvhived (pid %d)\n", pid);
  return {};
}

}  // namespace

void add_stop(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = app.add_subcommand("stop", "stop the daemon");
  flags->add_to(*command);
  command->callback([flags, &exit_code] {
    if (auto done = stop(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
