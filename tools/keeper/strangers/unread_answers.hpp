#pragma once
// Answers with descriptors that strangers have not read yet.
//
// The kernel counts a descriptor in an unread packet against the user that sent it, up to that
// user's limit of descriptors (ulimit -n). At the limit no process of the user can send a
// descriptor any more: no client gets a channel and no engine the pool. So a stranger's user may
// leave few answers unread, and a connection that is closed with an unread answer stays open, shut
// down, until its peer has read the answer or closed its end.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/expected.hpp"
#include "base/loop/event_loop.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class UnreadAnswers {
 public:
  struct Limits {
    std::size_t of_user = 64;
    std::size_t of_all = 512;
  };

  /// \param close  called on the loop with a kept connection whose answer is gone, and with copies
  ///               of those that are kept on, for what their peers have sent
  UnreadAnswers(EventLoop& loop, const Limits& limits, std::function<void(UniqueFd)> close)
      : loop_(loop), limits_(limits), close_(std::move(close)) {}
  UnreadAnswers(const UnreadAnswers&) = delete;
  UnreadAnswers& operator=(const UnreadAnswers&) = delete;
  /// Leaves kept connections open: the process ends (Connections::~Connections()).
  ~UnreadAnswers();

  /// Whether the user may be sent one more answer.
  [[nodiscard]] Expected<void> check(uid_t user);
  /// An answer was sent to the user.
  void sent(uid_t user, const UniqueFd& socket);
  /// Keeps a connection whose answer is unread. False = there is none, and `socket` is still the
  /// caller's.
  bool keep(UniqueFd& socket);
  /// Connections of this user that are kept.
  std::size_t kept_of(uid_t user) const;

 private:
  struct Answer {
    uid_t user = 0;
    int socket = -1;
    UniqueFd kept;  ///< the same socket, once this object keeps it
  };
  void forget_read();
  void drop_what_peers_sent();
  void look_again();

  EventLoop& loop_;
  Limits limits_;
  std::function<void(UniqueFd)> close_;
  std::vector<Answer> answers_;
  bool looks_again_ = false;  ///< the timer for look_again() is set
};

}  // namespace kvhive
