#include "tools/keeper/channels/file_helpers.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/memory_object.hpp"
#include "ipc/channel_memory.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// A helper without work ends after this time, so that clients that come and go do not cost a fork
/// each.
constexpr std::chrono::milliseconds kIdle{500};
/// Delay before the next try, if a helper may or can not be started, or its queue is full.
constexpr std::chrono::milliseconds kTryAgain{100};
/// Jobs in a helper's queue. The kernel limits how many descriptors a user's processes may have
/// sent to each other that are not received yet: a stuck helper must not use that up.
constexpr std::size_t kMostSent = 4;
/// Helpers have a lower priority than the daemon's other processes.
constexpr int kNiceness = 10;

/// A job and the descriptor of its memory, as one packet.
struct JobPacket {
  explicit JobPacket(FileHelpers::Job& job) : bytes{&job, sizeof job} {
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  JobPacket(const JobPacket&) = delete;
  JobPacket& operator=(const JobPacket&) = delete;

  iovec bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

/// False = the helper's queue is full, or the helper has ended.
bool send_job(int socket, FileHelpers::Job job, int memory) {
  JobPacket packet(job);
  cmsghdr* header = CMSG_FIRSTHDR(&packet.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof memory);
  std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
  return sendmsg(socket, &packet.message, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t{sizeof job};
}

// -- in the helper: a fork of a process with threads, so only system calls ------------------------

/// False = the keeper wants no more, or has ended.
bool receive_job(int socket, FileHelpers::Job& job, int& memory) {
  JobPacket packet(job);
  if (recvmsg(socket, &packet.message, MSG_CMSG_CLOEXEC) != ssize_t{sizeof job}) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&packet.message);
  if (header == nullptr) return false;
  std::memcpy(&memory, CMSG_DATA(header), sizeof memory);
  return true;
}

[[noreturn]] void help(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)setpriority(PRIO_PROCESS, 0, kNiceness);
  if (socket > 0) syscall(SYS_close_range, 0u, static_cast<unsigned>(socket) - 1, 0);
  syscall(SYS_close_range, static_cast<unsigned>(socket) + 1, ~0u, 0);
  FileHelpers::Job job;
  for (int fd = -1; receive_job(socket, job, fd);) {
    const UniqueFd memory(fd);
    if (job.kind == FileHelpers::Job::Kind::free)
      free_memory(memory, 0, job.number);
    else
      write_serving_engine(memory.get(), static_cast<std::uint32_t>(job.number));
    if (send(socket, &job, sizeof job, MSG_NOSIGNAL) != ssize_t{sizeof job}) break;
  }
  _exit(0);
}

}  // namespace

// -- in the keeper --------------------------------------------------------------------------------

FileHelpers::~FileHelpers() {
  for (auto& [user, helper] : helpers_) {
    if (helper.pid == 0) continue;
    if (helper.socket) loop_.unwatch(helper.socket.get());
    loop_.unwatch(helper.pidfd.get());
    kill_by_pidfd(helper.pidfd);
    waitpid(helper.pid, nullptr, WNOHANG);
  }
}

void FileHelpers::free(uid_t user, std::uint64_t channel, UniqueFd memory, std::size_t bytes) {
  if (!memory || bytes == 0)  // nothing was made yet
    return loop_.post([this, channel] { on_freed_(channel); });
  add(user, {Job::Kind::free, channel, bytes}, std::move(memory));
}

void FileHelpers::say_serving(uid_t user, std::uint64_t channel, UniqueFd memory,
                              std::uint32_t engine) {
  if (memory) add(user, {Job::Kind::say_serving, channel, engine}, std::move(memory));
}

void FileHelpers::add(uid_t user, const Job& job, UniqueFd memory) {
  Helper& helper = helpers_[user];
  // What was to be said about the channel is out of date. If the helper is stuck, engines that die
  // would otherwise add a descriptor each.
  const auto unsent = helper.jobs.begin() + static_cast<std::ptrdiff_t>(helper.sent);
  helper.jobs.erase(std::remove_if(unsent, helper.jobs.end(),
                                   [&](const auto& entry) {
                                     return entry.first.kind == Job::Kind::say_serving &&
                                            entry.first.channel == job.channel;
                                   }),
                    helper.jobs.end());
  helper.jobs.emplace_back(job, std::move(memory));
  send_jobs(user);
}

/// A person with many user ids could start a helper for each and keep them all waiting.
bool FileHelpers::may_start(uid_t user) const {
  if (user == 0 || user == geteuid()) return true;
  const auto running = std::count_if(helpers_.begin(), helpers_.end(),
                                     [](const auto& entry) { return entry.second.pid != 0; });
  return static_cast<std::size_t>(running) < kMostHelpers;
}

/// False = the system has no process or no descriptor for it.
bool FileHelpers::start(uid_t user, Helper& helper) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  UniqueFd ours(ends[0]), its(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) help(its.get());
  if (pid < 0) return false;
  auto pidfd = pidfd_of(pid);
  if (!pidfd) {  // a child that cannot be watched must not run
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return false;
  }
  helper.pid = pid;
  helper.socket = std::move(ours);
  helper.pidfd = std::move(*pidfd);
  loop_.watch(helper.socket.get(), [this, user] { on_answer(user); });
  loop_.watch(helper.pidfd.get(), [this, user] { on_end(user); });
  return true;
}

void FileHelpers::send_jobs(uid_t user) {
  const auto found = helpers_.find(user);
  if (found == helpers_.end()) return;
  Helper& helper = found->second;
  if (helper.pid == 0 && !(may_start(user) && start(user, helper))) return try_again(user, helper);
  if (!helper.socket) return;  // it is ending; the next one gets the jobs
  while (helper.sent < std::min(helper.jobs.size(), kMostSent)) {
    const auto& [job, memory] = helper.jobs[helper.sent];
    if (!send_job(helper.socket.get(), job, memory.get())) {
      if (helper.sent == 0) try_again(user, helper);
      return;  // else on_answer() sends the rest
    }
    ++helper.sent;
  }
}

/// Sets a timer, unless it is set.
void FileHelpers::try_again(uid_t user, Helper& helper) {
  if (std::exchange(helper.tries_again, true)) return;
  loop_.after(kTryAgain, [this, user] {
    if (const auto found = helpers_.find(user); found != helpers_.end())
      found->second.tries_again = false;
    send_jobs(user);
  });
}

void FileHelpers::on_answer(uid_t user) {
  Helper& helper = helpers_.at(user);
  Job job;
  const ssize_t got = recv(helper.socket.get(), &job, sizeof job, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got != ssize_t{sizeof job}) {  // it has ended
    loop_.unwatch(helper.socket.get());
    helper.socket = UniqueFd();
    return;
  }
  helper.jobs.pop_front();
  --helper.sent;
  const std::uint64_t done = ++helper.done;
  send_jobs(user);
  if (helper.jobs.empty()) loop_.after(kIdle, [this, user, done] { end_if_idle(user, done); });
  if (job.kind == Job::Kind::free) on_freed_(job.channel);
}

void FileHelpers::end_if_idle(uid_t user, std::uint64_t done) {
  const auto found = helpers_.find(user);
  if (found == helpers_.end() || found->second.done != done || !found->second.jobs.empty()) return;
  if (!found->second.socket) return;
  loop_.unwatch(found->second.socket.get());
  found->second.socket = UniqueFd();
}

/// A helper that has ended before its work was done is replaced.
void FileHelpers::on_end(uid_t user) {
  Helper& helper = helpers_.at(user);
  if (helper.socket) loop_.unwatch(helper.socket.get());
  loop_.unwatch(helper.pidfd.get());
  waitpid(helper.pid, nullptr, 0);
  helper.pid = 0;
  helper.socket = UniqueFd();
  helper.pidfd = UniqueFd();
  helper.sent = 0;
  if (helper.jobs.empty())
    helpers_.erase(user);
  else
    send_jobs(user);
}

}  // namespace kvhive
