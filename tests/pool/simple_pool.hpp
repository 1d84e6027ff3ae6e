#pragma once
// A pool that is written in the simplest way: which content is where, in both tiers, and in which
// order idle blocks go. It is kept equal in several processes: what one changes, it tells the
// others in words.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

class SimplePool {
 public:
  /// A content by the one before it (or all tokens before it), and its own tokens.
  using Key = std::vector<std::int64_t>;
  /// The content of a block. Equal contents have one identity, as long as any block has them; of
  /// equal ones the lowest serial is found.
  struct Content {
    Key key;
    std::int64_t identity = 0, serial = 0;
  };

  explicit SimplePool(const PoolGeometry& geometry)
      : first_host_(geometry.device_blocks),
        minimums_(geometry.model_minimums),
        blocks_(geometry.device_blocks + geometry.host_blocks),
        free_{geometry.device_blocks - 1, geometry.host_blocks} {}

  Tier tier_of(std::uint32_t id) const { return id < first_host_ ? Tier::device : Tier::host; }

  /// The first block in the tier published with this key; 0 = none.
  std::uint32_t find(Tier tier, const Key& key) const {
    const auto found = contents_.find(key);
    if (found == contents_.end()) return 0;
    for (const std::uint32_t id : found->second)
      if (tier_of(id) == tier) return id;
    return 0;
  }
  bool is_known(const Key& key) const { return contents_.contains(key); }
  std::int64_t identity(const Key& key) const { return content(contents_.at(key)[0])->identity; }
  std::size_t copies(const Key& key) const {
    const auto found = contents_.find(key);
    return found == contents_.end() ? 0 : found->second.size();
  }
  const std::optional<Content>& content(std::uint32_t id) const { return blocks_[id].content; }
  std::uint32_t references(std::uint32_t id) const { return blocks_[id].references; }

  std::size_t free(Tier tier) const { return free_[std::size_t(tier)]; }
  /// The next to be evicted first.
  std::vector<std::uint32_t> idle(Tier tier) const {
    std::vector<std::uint32_t> ids;
    for (const auto& [stamp, id] : order(tier)) ids.push_back(id);
    return ids;
  }

  /// How many blocks the model can take.
  std::size_t available(Tier tier, std::size_t model) const {
    std::size_t total = free(tier) + order(tier).size();
    for (std::size_t other = 0; tier == Tier::device && other < minimums_.size(); ++other) {
      if (other == model || minimums_[other] == 0) continue;
      const auto [all, idle] = count(other);
      const std::size_t held = all - idle;
      const std::size_t protects = minimums_[other] - std::min<std::size_t>(minimums_[other], held);
      total -= std::min(total, std::min(idle, protects));
    }
    return total;
  }

  /// Which blocks an allocation of so many evicts, in ascending order.
  std::vector<std::uint32_t> victims(Tier tier, std::size_t model, std::size_t wanted) const {
    const std::size_t beyond_free = wanted - std::min(wanted, free(tier));
    std::array<std::size_t, kMostModels> most;
    most.fill(wanted);
    for (std::size_t m = 0; tier == Tier::device && m < most.size(); ++m) {
      if (minimums_[m] == 0) continue;
      const std::size_t all = count(m).first + (m == model ? wanted : 0);
      most[m] = all - std::min<std::size_t>(all, minimums_[m]);
    }
    std::vector<std::uint32_t> gone;
    for (const auto& [stamp, id] : order(tier)) {
      if (gone.size() == beyond_free) break;
      std::size_t& left = most[blocks_[id].model];
      if (left == 0) continue;
      --left;
      gone.push_back(id);
    }
    // A model's minimum protects it from others, not from itself.
    for (const auto& [stamp, id] : order(tier))
      if (gone.size() < beyond_free && blocks_[id].model == model &&
          std::ranges::find(gone, id) == gone.end())
        gone.push_back(id);
    std::ranges::sort(gone);
    return gone;
  }

  // -- changes: also written to the log -----------------------------------------------------------

  /// Blocks that were free, or idle, for a process of the model to fill.
  void take(std::size_t model, const std::vector<std::uint32_t>& taken) {
    change(Change::take, static_cast<std::int64_t>(model), taken);
  }
  /// Under its own identity and serial if it had them before, in another block.
  void publish(std::uint32_t id, const Content& content) {
    std::vector<std::int64_t> words = {content.identity, content.serial};
    words.insert(words.end(), content.key.begin(), content.key.end());
    change(Change::publish, id, words);
  }
  void pin(const std::vector<std::uint32_t>& ids) { change(Change::pin, 0, ids); }
  /// As if they had not been pinned.
  void cancel(const std::vector<std::uint32_t>& ids) { change(Change::cancel, 0, ids); }
  /// In the order of their sequence: the last one goes first.
  void release(const std::vector<std::uint32_t>& ids) { change(Change::release, 0, ids); }

  /// What was changed here since the last call.
  std::vector<std::int64_t> take_log() { return std::exchange(log_, {}); }
  /// Does what another process's pool has done.
  void follow(std::span<const std::int64_t> log) {
    while (!log.empty()) {
      const auto words = static_cast<std::size_t>(log[2]);
      make(Change(log[0]), log[1], log.subspan(3, words));
      log = log.subspan(3 + words);
    }
  }

 private:
  enum class Change : std::int64_t { take, publish, pin, cancel, release };
  struct Block {
    std::uint32_t references = 0;
    std::size_t model = 0;
    std::optional<Content> content;
    std::uint64_t stamp = 0;  ///< of its last release
  };

  template <class Word>
  void change(Change what, std::int64_t which, const std::vector<Word>& words) {
    const std::size_t before = log_.size();
    log_.insert(log_.end(), {std::int64_t(what), which, std::ssize(words)});
    log_.insert(log_.end(), words.begin(), words.end());
    make(what, which, std::span(log_).subspan(before + 3));
  }

  void make(Change what, std::int64_t which, std::span<const std::int64_t> words) {
    switch (what) {
      case Change::take:
        for (const std::int64_t id : words) take_one(static_cast<std::size_t>(which), block_of(id));
        break;
      case Change::publish: publish_as(block_of(which), words); break;
      case Change::pin:
        for (const std::int64_t id : words)
          if (blocks_[block_of(id)].references++ == 0)
            order(tier_of(block_of(id))).erase(blocks_[block_of(id)].stamp);
        break;
      case Change::cancel:
        for (const std::int64_t id : words)
          if (--blocks_[block_of(id)].references == 0) let_go(block_of(id));
        break;
      case Change::release:
        for (auto id = words.rbegin(); id != words.rend(); ++id) {
          Block& block = blocks_[block_of(*id)];
          if (--block.references != 0) continue;
          block.stamp = ++last_stamp_;
          let_go(block_of(*id));
        }
    }
  }

  void take_one(std::size_t model, std::uint32_t id) {
    Block& block = blocks_[id];
    KV_CHECK(block.references == 0, id);
    if (block.content) {
      order(tier_of(id)).erase(block.stamp);
      const auto known = contents_.find(block.content->key);
      std::erase(known->second, id);
      if (known->second.empty()) contents_.erase(known);
    } else {
      --free_[std::size_t(tier_of(id))];
    }
    block = {1, model, std::nullopt};
  }

  void publish_as(std::uint32_t id, std::span<const std::int64_t> words) {
    Content content{{words.begin() + 2, words.end()}, words[0], words[1]};
    auto& same = contents_[content.key];
    ++last_serial_;
    if (content.serial == 0) content.serial = last_serial_;
    if (content.identity == 0) content.identity = last_serial_;
    if (!same.empty()) content.identity = blocks_[same[0]].content->identity;
    const auto later = std::ranges::find_if(
        same, [&](std::uint32_t other) { return blocks_[other].content->serial > content.serial; });
    same.insert(later, id);
    blocks_[id].content = std::move(content);
  }

  void let_go(std::uint32_t id) {
    if (blocks_[id].content)
      order(tier_of(id)).emplace(blocks_[id].stamp, id);
    else
      ++free_[std::size_t(tier_of(id))];
  }

  static std::uint32_t block_of(std::int64_t word) { return static_cast<std::uint32_t>(word); }
  using Order = std::map<std::uint64_t, std::uint32_t>;  ///< by the time of the release
  Order& order(Tier tier) { return idle_[std::size_t(tier)]; }
  const Order& order(Tier tier) const { return idle_[std::size_t(tier)]; }

  /// All blocks of a model in the device tier, and those of them that are idle.
  std::pair<std::size_t, std::size_t> count(std::size_t model) const {
    std::size_t all = 0, idle = 0;
    for (const Block& block : std::span(blocks_).first(first_host_)) {
      if (block.model != model || (block.references == 0 && !block.content)) continue;
      ++all;
      idle += block.references == 0;
    }
    return {all, idle};
  }

  std::uint32_t first_host_;
  std::array<std::uint32_t, kMostModels> minimums_;
  std::vector<Block> blocks_;
  std::array<std::size_t, 2> free_;
  std::array<Order, 2> idle_;
  std::map<Key, std::vector<std::uint32_t>> contents_;  ///< their blocks, by serial
  std::int64_t last_serial_ = 0;
  std::uint64_t last_stamp_ = 0;
  std::vector<std::int64_t> log_;
};

}  // namespace kvhive::testing
