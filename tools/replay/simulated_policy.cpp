#include "tools/replay/simulated_policy.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace kvhive {
namespace {

using Content = std::uint64_t;

class Simulation {
 public:
  Simulation(const std::vector<TraceRequest>& trace, std::uint32_t block_tokens,
             std::uint32_t blocks, SimulatedPolicy policy)
      : trace_(trace),
        block_tokens_(block_tokens),
        policy_(policy),
        blocks_(blocks),
        free_(blocks) {
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (!trace[i].session.empty()) last_request_[trace[i].session] = i;
      if (policy != SimulatedPolicy::optimum) continue;
      for (std::size_t k = 0; k < trace[i].full_blocks(block_tokens); ++k)
        uses_[trace[i].content[k]].push_back(i);
    }
    for (std::uint32_t id = 0; id < blocks; ++id) free_[id] = id;
  }

  std::vector<std::uint32_t> run() {
    std::vector<std::uint32_t> hits;
    for (std::size_t i = 0; i < trace_.size(); ++i) hits.push_back(serve(i));
    return hits;
  }

 private:
  struct Block {
    Content content = 0;
    bool is_published = false;
    bool is_hit = false;                   ///< since it was published, or since its last chance
    std::uint32_t uses = 0;                ///< requests that have had it
    const std::string* session = nullptr;  ///< the only one that has used it; null = several
    std::pair<std::int64_t, std::uint64_t> place;  ///< in the order, while it is idle
  };

  std::uint32_t serve(std::size_t number) {
    const TraceRequest& request = trace_[number];
    const std::size_t full = request.full_blocks(block_tokens_);
    const std::size_t total = full + (request.has_tail(block_tokens_) ? 1 : 0);
    if (total > blocks_.size()) return 0;
    // The last token is always computed.
    const std::size_t most = (2 * full + (total - full) - 1) / 2;
    std::vector<std::uint32_t> table;
    while (table.size() < most) {
      const auto copies = by_content_.find(request.content[table.size()]);
      if (copies == by_content_.end()) break;
      table.push_back(copies->second.front());
      use(table.back(), request);
    }
    const auto hits = static_cast<std::uint32_t>(table.size());
    while (table.size() < total) table.push_back(take());
    for (std::size_t k = hits; k < full; ++k) publish(table[k], request.content[k], request);
    for (auto id = table.rbegin(); id != table.rend(); ++id) release(*id, number);
    if (const auto last = last_request_.find(request.session);
        last != last_request_.end() && last->second == number)
      depart(request.session);
    return hits;
  }

  void use(std::uint32_t id, const TraceRequest& request) {
    Block& block = blocks_[id];
    idle_.erase({block.place, id});
    block.is_hit = true;
    ++block.uses;
    if (block.session != nullptr && *block.session != request.session) block.session = nullptr;
  }

  std::uint32_t take() {
    if (!free_.empty()) {
      const std::uint32_t id = free_.front();
      free_.pop_front();
      return id;
    }
    while (true) {
      const std::uint32_t id = idle_.begin()->second;
      idle_.erase(idle_.begin());
      Block& block = blocks_[id];
      if (gives_chances() && block.place.first == 0 && std::exchange(block.is_hit, false)) {
        put(id, 0);
        continue;
      }
      auto& copies = by_content_.at(block.content);
      std::erase(copies, id);
      if (copies.empty()) by_content_.erase(block.content);
      block = {};
      return id;
    }
  }

  void publish(std::uint32_t id, Content content, const TraceRequest& request) {
    blocks_[id] = {content, true, false, 1, request.session.empty() ? nullptr : &request.session,
                   {}};
    by_content_[content].push_back(id);
  }

  void release(std::uint32_t id, std::size_t number) {
    Block& block = blocks_[id];
    if (!block.is_published) return free_.push_front(id);
    switch (policy_) {
      case SimulatedPolicy::two_lists: return put(id, 0, block.uses > 1 ? blocks_.size() : 0);
      case SimulatedPolicy::lfu: return put(id, block.uses);
      case SimulatedPolicy::optimum: return put(id, -next_use(block.content, number));
      default: return put(id, 0);
    }
  }

  std::int64_t next_use(Content content, std::size_t after) const {
    const std::vector<std::size_t>& uses = uses_.at(content);
    const auto next = std::ranges::upper_bound(uses, after);
    return next != uses.end() ? static_cast<std::int64_t>(*next)
                              : std::numeric_limits<std::int64_t>::max();
  }

  /// What only this session has used goes first from now on.
  void depart(const std::string& session) {
    if (!knows_departures()) return;
    std::vector<std::uint32_t> theirs;
    for (const auto& [place, id] : idle_)
      if (blocks_[id].session != nullptr && *blocks_[id].session == session) theirs.push_back(id);
    for (const std::uint32_t id : theirs) {
      idle_.erase({blocks_[id].place, id});
      put(id, -1);
    }
  }

  /// \param age  releases that it is held as younger by
  void put(std::uint32_t id, std::int64_t rank, std::uint64_t age = 0) {
    blocks_[id].place = {rank, next_stamp_++ + age};
    idle_.insert({blocks_[id].place, id});
  }

  bool gives_chances() const {
    return policy_ == SimulatedPolicy::second_chance || policy_ == SimulatedPolicy::departed_second;
  }
  bool knows_departures() const {
    return policy_ == SimulatedPolicy::departed_first ||
           policy_ == SimulatedPolicy::departed_second;
  }

  const std::vector<TraceRequest>& trace_;
  const std::uint32_t block_tokens_;
  const SimulatedPolicy policy_;
  std::vector<Block> blocks_;
  std::deque<std::uint32_t> free_;
  std::set<std::pair<std::pair<std::int64_t, std::uint64_t>, std::uint32_t>> idle_;
  std::unordered_map<Content, std::vector<std::uint32_t>> by_content_;  ///< the first one first
  std::unordered_map<std::string, std::size_t> last_request_;           ///< by session
  std::unordered_map<Content, std::vector<std::size_t>> uses_;          ///< by which requests
  std::uint64_t next_stamp_ = 0;
};

}  // namespace

std::vector<std::uint32_t> simulate(const std::vector<TraceRequest>& trace,
                                    std::uint32_t block_tokens, std::uint32_t blocks,
                                    SimulatedPolicy policy) {
  return Simulation(trace, block_tokens, blocks, policy).run();
}

}  // namespace kvhive
