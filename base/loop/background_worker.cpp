#include "base/loop/background_worker.hpp"

#include <sys/resource.h>

#include <utility>

namespace kvhive {
namespace {

/// Lowers this thread's priority. A job serves one client; the process's other threads serve all.
/// At nice + 10 the thread still gets about a tenth of what another thread gets.
void yield_to_other_threads() {
  constexpr int kNicer = 10;
  constexpr int kCallingThread = 0;  // on Linux each thread has a niceness of its own
  const int nice = getpriority(PRIO_PROCESS, kCallingThread);
  (void)setpriority(PRIO_PROCESS, kCallingThread, nice + kNicer);
}

}  // namespace

BackgroundWorker::BackgroundWorker(std::size_t threads) {
  try {
    while (threads_.size() < threads) threads_.emplace_back([this] { work(); });
  } catch (...) {  // the system gives no more threads
    stop();
    throw;
  }
}

BackgroundWorker::~BackgroundWorker() { stop(); }

void BackgroundWorker::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
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
  yield_to_other_threads();
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
  {
    const std::lock_guard lock(mutex_);
    const auto jobs = waiting_.find(turn.key);
    if (!is_done) jobs->second.push_back(std::move(turn.job));
    if (jobs->second.empty()) {
      waiting_.erase(jobs);
      return;
    }
    turns_.push_back(turn.key);
  }
  has_work_.notify_one();  // this thread may go on with another key
}

}  // namespace kvhive
