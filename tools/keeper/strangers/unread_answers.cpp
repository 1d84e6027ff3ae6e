#include "tools/keeper/strangers/unread_answers.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace kvhive {
namespace {

constexpr std::chrono::seconds kLookAgain{1};

/// Whether the peer has neither read all that was sent to it nor closed its end.
bool has_unread(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

UnreadAnswers::~UnreadAnswers() {
  for (Answer& answer : answers_) (void)answer.kept.release();
}

Expected<void> UnreadAnswers::check(uid_t user) {
  forget_read();
  const auto its = static_cast<std::size_t>(
      std::count_if(answers_.begin(), answers_.end(),
                    [user](const Answer& answer) { return answer.user == user; }));
  if (its >= limits_.of_user)
    return failure(Errc::too_many_processes,
                   "user " + std::to_string(user) + " has not read the answers to " +
                       std::to_string(its) + " hellos; read them, or close these connections");
  if (answers_.size() < limits_.of_all) return {};
  return failure(Errc::too_many_processes,
                 "the daemon's clients have not read the answers to " +
                     std::to_string(answers_.size()) +
                     " hellos; try again, or raise the daemon's limit of descriptors (ulimit -n)");
}

void UnreadAnswers::sent(uid_t user, const UniqueFd& socket) {
  answers_.push_back({user, socket.get(), UniqueFd()});
}

bool UnreadAnswers::keep(UniqueFd& socket) {
  const auto found = std::find_if(answers_.begin(), answers_.end(), [&](const Answer& answer) {
    return !answer.kept && answer.socket == socket.get();
  });
  if (found == answers_.end()) return false;
  if (!has_unread(socket.get())) {
    answers_.erase(found);
    return false;
  }
  shutdown(socket.get(), SHUT_RDWR);
  found->kept = std::move(socket);
  if (!std::exchange(looks_again_, true)) loop_.after(kLookAgain, [this] { look_again(); });
  return true;
}

std::size_t UnreadAnswers::kept_of(uid_t user) const {
  return static_cast<std::size_t>(
      std::count_if(answers_.begin(), answers_.end(),
                    [user](const Answer& answer) { return answer.kept && answer.user == user; }));
}

void UnreadAnswers::forget_read() {
  const auto read = std::partition(answers_.begin(), answers_.end(),
                                   [](const Answer& answer) { return has_unread(answer.socket); });
  std::vector<Answer> gone(std::make_move_iterator(read), std::make_move_iterator(answers_.end()));
  answers_.erase(read, answers_.end());
  for (Answer& answer : gone)
    if (answer.kept) close_(std::move(answer.kept));
}

/// A peer that has sent its own end of the connection would keep it open for ever.
void UnreadAnswers::drop_what_peers_sent() {
  for (const Answer& answer : answers_) {
    if (!answer.kept) continue;
    if (UniqueFd copy{fcntl(answer.kept.get(), F_DUPFD_CLOEXEC, 0)}) close_(std::move(copy));
  }
}

void UnreadAnswers::look_again() {
  drop_what_peers_sent();
  forget_read();
  looks_again_ = std::any_of(answers_.begin(), answers_.end(),
                             [](const Answer& answer) { return bool(answer.kept); });
  if (looks_again_) loop_.after(kLookAgain, [this] { look_again(); });
}

}  // namespace kvhive
