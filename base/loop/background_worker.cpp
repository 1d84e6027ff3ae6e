#include "base/loop/background_worker.hpp"

#include <utility>

namespace kvhive {

BackgroundWorker::BackgroundWorker() : thread_([this] { work(); }) {}

BackgroundWorker::~BackgroundWorker() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_one();
  thread_.join();
}

void BackgroundWorker::add(std::uint64_t key, Job job) {
  {
    const std::lock_guard lock(mutex_);
    const auto [jobs, is_new] = waiting_.try_emplace(key);
    if (is_new) turns_.push_back(key);
    jobs->second.push_back(std::move(job));
  }
  has_work_.notify_one();
}

void BackgroundWorker::work() {
  while (auto turn = next_turn()) {
    const bool is_done = turn->job();
    end_turn(std::move(*turn), is_done);
  }
}

/// The first job of the key whose turn it is. Nothing = this object is being destroyed.
std::optional<BackgroundWorker::Turn> BackgroundWorker::next_turn() {
  std::unique_lock lock(mutex_);
  has_work_.wait(lock, [this] { return is_ending_ || !turns_.empty(); });
  if (is_ending_) return std::nullopt;
  const std::uint64_t key = turns_.front();
  turns_.pop_front();
  auto& jobs = waiting_.at(key);
  Turn turn{key, std::move(jobs.front())};
  jobs.pop_front();
  return turn;
}

/// Queues the job and its key again if they have more to do.
void BackgroundWorker::end_turn(Turn turn, bool is_done) {
  const std::lock_guard lock(mutex_);
  const auto jobs = waiting_.find(turn.key);
  if (!is_done) jobs->second.push_back(std::move(turn.job));
  if (jobs->second.empty())
    waiting_.erase(jobs);
  else
    turns_.push_back(turn.key);
}

}  // namespace kvhive
