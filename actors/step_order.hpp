#pragma once
// Steps look sequences up in nearly the same order, each time. Whoever remembers that order knows
// the next entry of a map without hashing: with 256 sequences, lookups were a sixth of the time
// that scheduler and block manager take for a step.

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.hpp"

namespace kvhive {

template <class Entry>
class StepOrder {
 public:
  /// The lookups of a step follow.
  void begin() { next_ = 0; }
  /// The map's entry; null if there is none.
  Entry* find(std::unordered_map<SeqId, Entry>& map, SeqId seq) {
    if (next_ < order_.size() && order_[next_].first == seq) return order_[next_++].second;
    const auto found = map.find(seq);
    if (found == map.end()) return nullptr;
    order_.resize(next_++);
    return order_.emplace_back(seq, &found->second).second;
  }
  /// An entry is about to leave the map.
  void forget() {
    order_.clear();
    next_ = 0;
  }

 private:
  std::vector<std::pair<SeqId, Entry*>> order_;
  std::size_t next_ = 0;
};

}  // namespace kvhive
