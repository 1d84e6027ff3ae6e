// kvhive stop: ends a running daemon and waits until it is gone.

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "tools/cli/command.hpp"
#include "tools/cli/inspector.hpp"

namespace kvhive {
namespace {

Expected<void> stop(const CommonFlags& flags) {
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::fail);
  if (!inspector) return forward_error(inspector);
  auto status = inspector->status();
  if (!status) return forward_error(status);
  const pid_t pid = (*status)["keeper"]["pid"];
  const UniqueFd pidfd{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  if (!pidfd) return os_failure("pidfd_open");
  if (syscall(SYS_pidfd_send_signal, pidfd.get(), SIGTERM, nullptr, 0) != 0)
    return os_failure("signal the daemon");
  pollfd gone{pidfd.get(), POLLIN, 0};
  if (poll(&gone, 1, 30000) <= 0)
    return failure(Errc::os_error, "the daemon (pid " + std::to_string(pid) +
                                       ") was asked to stop 30 s ago and still runs; kill -9 it");
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
