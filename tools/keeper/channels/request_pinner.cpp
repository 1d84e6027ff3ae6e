#include "tools/keeper/channels/request_pinner.hpp"

#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/protocol.hpp"
#include "tools/keeper/channels/page_pins.hpp"

namespace kvhive {
namespace {

/// In the process: does what the keeper sends next, and closes it. Nothing = the keeper is gone.
std::optional<PagesPinned> pin_next(int socket) {
  auto packet = receive_answer(socket, -1);
  const auto job = packet && *packet ? (*packet)->as<PinPages>() : std::nullopt;
  if (!job) return std::nullopt;
  std::vector<UniqueFd> pipes = std::move((*packet)->fds);
  if (pipes.size() < 2) return PagesPinned{EBADF};
  const UniqueFd requests = std::move(pipes.front());
  pipes.erase(pipes.begin());
  return PagesPinned{pin_pages(pipes, requests.get(), job->bytes)};
}

int serve(int socket) {
  while (const auto answer = pin_next(socket))
    if (!send_packet(socket, *answer)) break;
  return 0;
}

const std::string kCannot = "the pages of the channel's requests cannot be pinned: ";

Expected<void> result_of(int error) {
  if (error == 0) return {};
  if (error == EFAULT)
    return failure(Errc::out_of_memory, kCannot + "there is no memory; ask for a smaller channel");
  return failure(Errc::os_error, kCannot + std::strerror(error));
}

}  // namespace

RequestPinner::~RequestPinner() {
  for (const Helper& helper : helpers_) loop_.unwatch(helper.socket.get());
}

void RequestPinner::pin(std::uint64_t channel, uid_t user, const ChannelMemory& memory,
                        std::size_t bytes) {
  wanted_.insert(channel);
  waiting_.push_back({channel, user, &memory, bytes});
  // Not before the keeper has written down that the requests are sealed. A successor that handled
  // the client's packet again would have the pages put twice into pipes with room for one time.
  loop_.post([this] { start_waiting(); });
}

void RequestPinner::cancel(std::uint64_t channel) {
  wanted_.erase(channel);
  waiting_.remove_if([channel](const Job& job) { return job.channel == channel; });
}

void RequestPinner::tell(const Job& job, Expected<void> result) {
  if (wanted_.erase(job.channel) != 0) events_.on_pinned(job.channel, std::move(result));
}

bool RequestPinner::may_start(const Job& job) const {
  const auto running = std::count_if(helpers_.begin(), helpers_.end(), [&](const Helper& helper) {
    return helper.job && helper.job->user == job.user;
  });
  return static_cast<std::size_t>(running) < kMostOfUser;
}

void RequestPinner::start_waiting() {
  for (auto job = waiting_.begin(); job != waiting_.end();) {
    if (!may_start(*job)) {
      ++job;
      continue;
    }
    if (auto started = start(*job); !started)
      loop_.post([this, job = *job, error = started.error()] { tell(job, tl::unexpected(error)); });
    job = waiting_.erase(job);
  }
}

Expected<void> RequestPinner::start(const Job& job) {
  auto helper = idle_helper();
  if (!helper) return forward_error(helper);
  std::vector<int> fds = {job.memory->requests.get()};
  for (const UniqueFd& pipe : job.memory->pins)
    if (fds.size() < kMostFds) fds.push_back(pipe.get());
  if (auto sent = send_packet((*helper)->socket.get(), PinPages{job.bytes}, fds); !sent)
    return sent;
  (*helper)->job = job;
  return {};
}

/// A process that waits for a job; it is started if there is none.
Expected<RequestPinner::Helpers::iterator> RequestPinner::idle_helper() {
  const auto idle = std::find_if(helpers_.begin(), helpers_.end(), is_idle);
  if (idle != helpers_.end()) return idle;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return os_failure("socketpair");
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const auto helper = helpers_.insert(helpers_.end(), Helper{std::move(ours), std::nullopt});
  auto started = processes_.start(
      {theirs.get()}, [&theirs] { return serve(theirs.get()); },
      [this, helper](int status) { on_end(helper, status); });
  if (!started) {
    helpers_.erase(helper);
    return forward_error(started);
  }
  loop_.watch(helper->socket.get(), [this, helper] { on_answer(helper); });
  return helper;
}

void RequestPinner::on_answer(Helpers::iterator helper) {
  const auto packet = receive_packet(helper->socket.get());
  const auto answer = packet && *packet ? (*packet)->as<PagesPinned>() : std::nullopt;
  if (!answer || !helper->job) return hang_up(*helper);  // it has ended
  const Job done = *std::exchange(helper->job, std::nullopt);
  start_waiting();
  if (std::count_if(helpers_.begin(), helpers_.end(), is_idle) > 1) hang_up(*helper);
  tell(done, result_of(answer->error));
}

/// The process ends then.
void RequestPinner::hang_up(Helper& helper) {
  loop_.unwatch(helper.socket.get());
  helper.socket = UniqueFd();
}

void RequestPinner::on_end(Helpers::iterator helper, int status) {
  hang_up(*helper);
  const std::optional<Job> job = helper->job;
  helpers_.erase(helper);
  start_waiting();
  if (job)
    tell(*job,
         failure(Errc::os_error, kCannot +
                                     (WIFSIGNALED(status) ? "the process was ended by signal " +
                                                                std::to_string(WTERMSIG(status))
                                                          : std::string("the process has ended")) +
                                     "; connect again"));
}

}  // namespace kvhive
