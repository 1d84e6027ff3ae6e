#include "ipc/channel/bell_ringers.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "base/stop_watch.hpp"

namespace kvhive {
namespace {

/// A ring takes a few microseconds. One that takes longer than this is slow.
constexpr std::chrono::nanoseconds kSlow = std::chrono::milliseconds(1);
/// After a job of a user who is known as slow, its thread rests for this many times as long.
constexpr int kRests = 9;
constexpr std::chrono::nanoseconds kLongestRest = std::chrono::seconds(1);
/// The most descriptors of a user that wait to be closed.
constexpr int kMostClosing = 256;

}  // namespace

struct BellRingers::User {
  explicit User(std::uint32_t number) : id(number) {}
  const std::uint32_t id;
  /// Changes only at the end of a job, and a job runs only in the worker that this names: so no two
  /// jobs of a user ever run at the same time.
  std::atomic<bool> is_slow{false};
  std::atomic<int> closing{0};
};

/// A descriptor that a client has, too. A job takes no UniqueFd, since it can be copied.
struct BellRingers::Bell {
  UniqueFd engine_end;                ///< or the other bell, if it is to be closed only
  std::atomic<bool> is_asked{false};  ///< a ring waits for its turn
};

class BellRingers::QueuedRing : public ClientRing {
 public:
  QueuedRing(BellRingers& ringers, std::shared_ptr<User> user, UniqueFd engine_end)
      : ringers_(ringers), user_(std::move(user)), bell_(std::make_shared<Bell>()) {
    bell_->engine_end = std::move(engine_end);
  }
  QueuedRing(const QueuedRing&) = delete;
  QueuedRing& operator=(const QueuedRing&) = delete;
  ~QueuedRing() override { ringers_.close(user_, bell_); }

  void ring() override {
    if (bell_->is_asked.exchange(true)) return;
    ringers_.queue(user_, [bell = bell_, &ring = ringers_.ring_] {
      // First: what is written during the ring, the client may not see any more, and is rung again.
      bell->is_asked.exchange(false);
      ring(bell->engine_end.get());
    });
  }

  void close(UniqueFd shared) override { ringers_.close(user_, std::move(shared)); }

 private:
  BellRingers& ringers_;
  std::shared_ptr<User> user_;
  std::shared_ptr<Bell> bell_;
};

BellRingers::~BellRingers() {
  // Both, before either is destroyed: a job of one may move to the other.
  quick_.stop();
  slow_.stop();
}

Expected<std::unique_ptr<ClientRing>> BellRingers::ring_for(std::uint32_t user,
                                                            UniqueFd engine_end) {
  std::shared_ptr<User> found = find(user);
  if (found->closing >= kMostClosing)
    return failure(Errc::pool_exhausted,
                   std::to_string(kMostClosing) + " bells of channels that user " +
                       std::to_string(user) +
                       " has left are not closed yet: much waits at them; try again later");
  return std::make_unique<QueuedRing>(*this, std::move(found), std::move(engine_end));
}

void BellRingers::close(std::uint32_t user, UniqueFd shared) {
  close(find(user), std::move(shared));
}

void BellRingers::close(const std::shared_ptr<User>& user, UniqueFd shared) {
  auto bell = std::make_shared<Bell>();
  bell->engine_end = std::move(shared);
  close(user, bell);
}

void BellRingers::close(const std::shared_ptr<User>& user, const std::shared_ptr<Bell>& bell) {
  ++user->closing;
  queue(user, [user = user.get(), bell] {
    bell->engine_end = UniqueFd();
    --user->closing;
  });
}

std::shared_ptr<BellRingers::User> BellRingers::find(std::uint32_t user) {
  const std::lock_guard lock(mutex_);
  std::erase_if(users_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<User>& known = users_[user];
  std::shared_ptr<User> found = known.lock();
  if (!found) known = found = std::make_shared<User>(user);
  return found;
}

void BellRingers::queue(const std::shared_ptr<User>& user, Job job) {
  const bool is_slow = user->is_slow;
  (is_slow ? slow_ : quick_).add(user->id, [this, user, is_slow, job = std::move(job)]() mutable {
    if (user->is_slow != is_slow) {  // since the job was queued
      queue(user, std::move(job));
      return true;
    }
    // A ring never sleeps, and what other threads take is not its fault.
    const auto before = thread_cpu_time();
    job();
    const auto time = thread_cpu_time() - before;
    user->is_slow = time > kSlow;
    if (is_slow) rest_(std::min(kRests * time, kLongestRest));
    return true;
  });
}

}  // namespace kvhive
