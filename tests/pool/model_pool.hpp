#pragma once
// vLLM's block pool, written in the simplest way: one queue, one map. A BlockPool that is the only
// process in its pool must decide as this model does. Source: vLLM v1/core/block_pool.py,
// single_type_kv_cache_manager.py (2026); the second chance and parents are kvhive's own: a block's
// content is its tokens behind a certain publication of its parent's. So a block that outlives its
// parent is not found again, also when the parent's content comes back.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
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
  /// The same for all copies of a content, in all tiers, as long as there is one; 0 = no parent.
  using Uid = std::uint64_t;
  /// Which contents there are in any tier.
  struct Contents {
    struct Known {
      Uid uid = 0;
      std::size_t copies = 0;
    };
    std::map<std::pair<Key, Uid>, Known> known;
    Uid last = 0;
  };

  ModelPool(std::uint32_t first, std::uint32_t end, EvictionPolicy policy = EvictionPolicy::lru,
            std::shared_ptr<Contents> contents = std::make_shared<Contents>())
      : first_(first), policy_(policy), contents_(std::move(contents)), blocks_(end - first) {
    for (std::uint32_t id = first; id < end; ++id) queue_.push_back(id);
  }

  /// The first block published with this key behind this parent.
  std::optional<std::uint32_t> find(const Key& key, Uid parent = 0) const {
    const auto found = cached_.find({key, parent});
    return found == cached_.end() ? std::nullopt : std::optional(found->second.front());
  }

  std::vector<std::uint32_t> match(const std::vector<Key>& keys) {
    std::vector<std::uint32_t> hit;
    for (const Key& key : keys) {
      const auto found = find(key, hit.empty() ? 0 : uid_of(hit.back()));
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

  void publish(std::uint32_t id, const Key& key, Uid parent = 0) {
    at(id).content = {key, parent};
    cached_[*at(id).content].push_back(id);
    Contents::Known& known = contents_->known[*at(id).content];
    if (known.copies++ == 0) known.uid = ++contents_->last;
  }
  /// \pre is_cached(id)
  Uid uid_of(std::uint32_t id) const {
    return contents_->known.at(*blocks_[id - first_].content).uid;
  }

  void fork(const std::vector<std::uint32_t>& ids) {
    for (const std::uint32_t id : ids)
      if (at(id).references++ == 0) std::erase(queue_, id);
  }

  void release(const std::vector<std::uint32_t>& ids) {
    std::vector<std::uint32_t> uncached;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (--at(*id).references != 0) continue;
      if (is_cached(*id))
        queue_.push_back(*id);
      else
        uncached.push_back(*id);
    }
    queue_.insert(queue_.begin(), uncached.begin(), uncached.end());
  }

  const std::deque<std::uint32_t>& queue() const { return queue_; }
  std::uint32_t references(std::uint32_t id) const { return blocks_[id - first_].references; }
  bool is_cached(std::uint32_t id) const { return blocks_[id - first_].content.has_value(); }

 private:
  struct Block {
    std::uint32_t references = 0;
    std::optional<std::pair<Key, Uid>> content;  ///< with its parent's uid
    bool is_hit = false;  ///< since it was published, or since its last chance
  };
  Block& at(std::uint32_t id) { return blocks_[id - first_]; }

  void forget(std::uint32_t id) {
    const auto content = std::exchange(at(id).content, std::nullopt);
    if (!content) return;
    auto& same = cached_.at(*content);
    std::erase(same, id);
    if (same.empty()) cached_.erase(*content);
    const auto known = contents_->known.find(*content);
    if (--known->second.copies == 0) contents_->known.erase(known);
  }

  std::uint32_t first_;
  EvictionPolicy policy_;
  std::shared_ptr<Contents> contents_;
  std::vector<Block> blocks_;
  std::deque<std::uint32_t> queue_;
  std::map<std::pair<Key, Uid>, std::vector<std::uint32_t>> cached_;
};

}  // namespace kvhive::testing
