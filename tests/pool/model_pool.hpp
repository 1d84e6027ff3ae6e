#pragma once
// vLLM's block pool, written in the simplest way: one queue, one map. A BlockPool that is the only
// process in its pool must decide as this model does. Source: vLLM v1/core/block_pool.py,
// single_type_kv_cache_manager.py (2026); the second chance is kvhive's own.

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "config/choices.hpp"

namespace kvhive::testing {

class ModelPool {
 public:
  /// A block's content: its domain and all tokens from the start of the sequence to its end.
  using Key = std::vector<TokenId>;

  ModelPool(std::uint32_t first, std::uint32_t end, EvictionPolicy policy = EvictionPolicy::lru)
      : first_(first), policy_(policy), blocks_(end - first) {
    for (std::uint32_t id = first; id < end; ++id) queue_.push_back(id);
  }

  /// The first block published with this key.
  std::optional<std::uint32_t> find(const Key& key) const {
    const auto found = cached_.find(key);
    return found == cached_.end() ? std::nullopt : std::optional(found->second.front());
  }

  std::vector<std::uint32_t> match(const std::vector<Key>& keys) {
    std::vector<std::uint32_t> hit;
    for (const Key& key : keys) {
      const auto found = find(key);
      if (!found) break;
      hit.push_back(*found);
    }
    fork(hit);
    mark(hit);
    return hit;
  }

  /// A match has found them.
  void mark(const std::vector<std::uint32_t>& hit) {
    for (const std::uint32_t id : hit) at(id).is_hit = policy_ == EvictionPolicy::second_chance;
  }

  std::optional<std::vector<std::uint32_t>> allocate(std::size_t count) {
    if (count > queue_.size()) return std::nullopt;
    std::vector<std::uint32_t> taken;
    while (taken.size() < count) {
      const std::uint32_t id = queue_.front();
      queue_.pop_front();
      if (std::exchange(at(id).is_hit, false)) {
        queue_.push_back(id);
        continue;
      }
      forget(id);
      at(id).references = 1;
      taken.push_back(id);
    }
    return taken;
  }

  void publish(std::uint32_t id, const Key& key) {
    at(id).key = key;
    cached_[key].push_back(id);
  }

  void fork(const std::vector<std::uint32_t>& ids) {
    for (const std::uint32_t id : ids)
      if (at(id).references++ == 0) std::erase(queue_, id);
  }

  void release(const std::vector<std::uint32_t>& ids) {
    std::vector<std::uint32_t> uncached;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (--at(*id).references != 0) continue;
      if (at(*id).key)
        queue_.push_back(*id);
      else
        uncached.push_back(*id);
    }
    queue_.insert(queue_.begin(), uncached.begin(), uncached.end());
  }

  const std::deque<std::uint32_t>& queue() const { return queue_; }
  std::uint32_t references(std::uint32_t id) const { return blocks_[id - first_].references; }
  bool is_cached(std::uint32_t id) const { return blocks_[id - first_].key.has_value(); }

 private:
  struct Block {
    std::uint32_t references = 0;
    std::optional<Key> key;
    bool is_hit = false;  ///< since it was published, or since its last chance
  };
  Block& at(std::uint32_t id) { return blocks_[id - first_]; }

  void forget(std::uint32_t id) {
    if (!at(id).key) return;
    auto& same = cached_[*at(id).key];
    std::erase(same, id);
    if (same.empty()) cached_.erase(*at(id).key);
    at(id).key.reset();
  }

  std::uint32_t first_;
  EvictionPolicy policy_;
  std::vector<Block> blocks_;
  std::deque<std::uint32_t> queue_;
  std::map<Key, std::vector<std::uint32_t>> cached_;
};

}  // namespace kvhive::testing
