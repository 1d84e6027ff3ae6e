#pragma once
// Work that callers wait for, in a fair order: whoever asks for much waits behind itself, and not
// before others.
//
// Work for answers and other work take turns, so that any number of callers who count tokens delay
// an answer by one job. Among the work of a kind, callers take turns; a caller's own is done in the
// order in which it came.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace kvhive {

/// Who waits, and for what.
struct Turn {
  enum class Kind : std::uint8_t {
    answer,  ///< text that a model writes
    other,   ///< /tokenize, /detokenize
  };
  Kind kind = Kind::answer;
  std::size_t caller = 0;  ///< callers with one number are one
};

template <class Job>
class TurnQueue {
 public:
  void push(const Turn& turn, Job job) {
    OfKind& all = kinds_[std::size_t(turn.kind)];
    std::deque<Job>& jobs = all.jobs[turn.caller];
    if (jobs.empty()) all.order.push_back(turn.caller);
    jobs.push_back(std::move(job));
    ++size_;
  }

  /// The job whose turn it is. There must be one.
  Job pop() {
    KV_CHECK(size_ != 0);
    OfKind& wanted = kinds_[next_];
    OfKind& all = wanted.order.empty() ? kinds_[1 - next_] : wanted;
    next_ = &all == &kinds_[0] ? 1 : 0;
    const std::size_t caller = all.order.front();
    all.order.pop_front();
    const auto place = all.jobs.find(caller);
    Job job = std::move(place->second.front());
    place->second.pop_front();
    if (place->second.empty())
      all.jobs.erase(place);
    else
      all.order.push_back(caller);
    --size_;
    return job;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct OfKind {
    std::map<std::size_t, std::deque<Job>> jobs;  ///< by caller; none is empty
    std::deque<std::size_t> order;                ///< callers, the next one first
  };
  std::array<OfKind, 2> kinds_;
  std::size_t next_ = 0;  ///< the kind whose turn it is
  std::size_t size_ = 0;
};

}  // namespace kvhive
