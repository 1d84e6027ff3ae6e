#include "tools/keeper/gpu_memory_maker.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/exit_codes.hpp"
#include "ipc/pidfd.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/children/ask_child.hpp"

namespace kvhive {

Expected<std::optional<GpuMemoryMaker::Made>> GpuMemoryMaker::make(const ResolvedOptions& options,
                                                                   std::size_t arena_bytes,
                                                                   int stop) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return os_failure("socketpair");
  line_ = UniqueFd(ends[0]);
  UniqueFd theirs(ends[1]);
  child_.program = "kvhive-engine";
  child_.flags = flags_of_all_models(options);
  child_.flags.push_back("--make-gpu-memory=" + std::to_string(arena_bytes));
  auto asked = ask(child_, {.stop = stop, .answer = line_.get()}, theirs.get());
  if (!asked) return forward_error(asked);
  if (!*asked) return std::optional<Made>();
  theirs = UniqueFd();
  auto packet = receive_packet(line_.get());
  if (!packet) return forward_error(packet);
  const auto memory = *packet ? (*packet)->as<GpuMemory>() : std::nullopt;
  if (!memory || (*packet)->fds.size() != 1 + options.models.size())
    return failure(Errc::bad_format, "kvhive-engine --make-gpu-memory handed over no memory");
  if (memory->needs_its_maker == 0) end();
  std::vector<UniqueFd>& fds = (*packet)->fds;
  Made made{std::move(fds.front()), {}};
  std::move(fds.begin() + 1, fds.end(), std::back_inserter(made.weights));
  return std::optional<Made>(std::move(made));
}

void GpuMemoryMaker::resume(const Running& running) {
  child_.program = "kvhive-engine";
  child_.pid = running.pid;
  child_.pidfd = UniqueFd(running.pidfd);
  line_ = UniqueFd(running.line);
}

void GpuMemoryMaker::check_context() {
  if (!is_running()) return;
  // An error means that the child has ended; its pidfd tells the keeper so.
  (void)send_packet(line_.get(), GpuContextCheck{});
}

std::string GpuMemoryMaker::collect() {
  const pid_t pid = child_.pid;
  const std::string end = kvhive::collect(child_);
  return "the process that kept the GPU's memory (kvhive-engine, pid " + std::to_string(pid) +
         ") ended: " + end +
         (child_.last_exit_code == kExitDeviceLost ? " (its context was lost)" : "") +
         "; with it the KV and the weights of all engines are gone. Start the daemon again; with "
         "--gpu-memory-sharing vmm, where the driver can do it, there is no such process";
}

void GpuMemoryMaker::end() {
  line_ = UniqueFd();
  if (!is_running()) return;
  kill_by_pidfd(child_.pidfd);
  kvhive::collect(child_, Collected::at_once);  // the daemon starts or ends
}

}  // namespace kvhive
