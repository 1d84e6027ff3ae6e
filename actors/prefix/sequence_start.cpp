#include "actors/prefix/sequence_start.hpp"

#include <algorithm>

namespace kvhive {
namespace {

PrefixHit match(BlockPool& pool, Tier tier, const SequenceContent& sequence, const Prefix& from,
                std::size_t blocks) {
  const auto names = sequence.names.names(from.group).subspan(from.depth, blocks);
  const auto extras = sequence.names.extras(from.group);
  const std::size_t block_size = pool.tokens_per_block();
  return pool.match(tier, from, names,
                    sequence.tokens.subspan(from.depth * block_size, blocks * block_size),
                    extras.empty() ? extras : extras.subspan(from.depth, blocks));
}

Prefix root_of(const SequenceContent& sequence, GroupId group, std::size_t depth = 0) {
  return BlockPool::root(sequence.domain, group, static_cast<std::uint32_t>(depth),
                         sequence.resets);
}

class Search {
 public:
  Search(BlockPool& pool, const SequenceContent& sequence, std::size_t most, bool may_promote,
         const StepBlocks& step)
      : pool_(pool),
        groups_(pool.groups()),
        sequence_(sequence),
        most_(most),
        may_promote_(may_promote),
        step_(step) {
    for (std::size_t g = 0; g < groups_.count; ++g)
      start_.groups.push_back({std::vector<BlockId>(most, kNullBlock),
                               std::vector<BlockId>(most, kNullBlock),
                               root_of(sequence, groups_.id(g))});
    has_searched_.resize(groups_.count);
  }

  SequenceStart run() {
    if (groups_.is_one_full()) {
      search_run(groups_.id(0));
      while (start_.hit < most_ && is_found(0, start_.hit)) ++start_.hit;
      start_.hit_of_first = start_.hit;
    } else {
      const GroupsHit hit = longest_hit(groups_, most_, pool_.tokens_per_block(),
                                        [&](std::size_t g, std::size_t i) { return find(g, i); });
      start_.hit = hit.blocks;
      start_.hit_of_first = hit.of_first;
    }
    for (std::size_t g = 0; g < groups_.count; ++g) keep_needed(groups_.id(g));
    pool_.cancel(unneeded_);
    return std::move(start_);
  }

 private:
  bool is_found(std::size_t g, std::size_t i) const {
    return start_.groups[g].device[i] != kNullBlock || start_.groups[g].host[i] != kNullBlock;
  }

  bool find(std::size_t g, std::size_t i) {
    const GroupId group = groups_.id(g);
    if (!groups_.is_chained(group))
      search_one(group, i);
    else if (!has_searched_[g])
      search_run(group);
    return is_found(g, i);
  }

  /// Of a group of full attention: the device tier from the start on, and the host tier from where
  /// that ends. Never a device block behind a host block: both tiers evict the ends of sequences
  /// first.
  void search_run(GroupId group) {
    has_searched_[groups_.place(group)] = true;
    auto& [device, host, end] = start_.groups[groups_.place(group)];
    const PrefixHit there = match(pool_, Tier::device, sequence_, end, most_);
    std::copy(there.blocks.begin(), there.blocks.end(), device.begin());
    end = there.end;
    if (share(group, end.depth, most_ - end.depth) || end.depth == most_ || !may_promote_) return;
    const PrefixHit behind = match(pool_, Tier::host, sequence_, end, most_ - end.depth);
    std::copy(behind.blocks.begin(), behind.blocks.end(), host.begin() + end.depth);
  }

  void search_one(GroupId group, std::size_t i) {
    auto& [device, host, end] = start_.groups[groups_.place(group)];
    const Prefix place = root_of(sequence_, group, i);
    if (const PrefixHit there = match(pool_, Tier::device, sequence_, place, 1);
        !there.blocks.empty()) {
      device[i] = there.blocks.front();
    } else if (!share(group, i, 1) && may_promote_) {
      const PrefixHit below = match(pool_, Tier::host, sequence_, place, 1);
      if (!below.blocks.empty()) host[i] = below.blocks.front();
    }
  }

  /// Blocks of the same step get one more reference. False if there are none.
  bool share(GroupId group, std::size_t first, std::size_t count) {
    const std::vector<BlockId> blocks = step_.find(sequence_, group, first, count);
    pool_.fork(blocks);
    std::ranges::copy(blocks, start_.groups[groups_.place(group)].device.begin() +
                                  static_cast<std::ptrdiff_t>(first));
    return !blocks.empty();
  }

  void keep_needed(GroupId group) {
    auto& [device, host, end] = start_.groups[groups_.place(group)];
    const std::size_t first =
        groups_[group].first_block(start_.hit * pool_.tokens_per_block(), pool_.tokens_per_block());
    for (std::vector<BlockId>* table : {&device, &host}) {
      append_blocks(unneeded_.blocks, std::span(*table).first(first));
      append_blocks(unneeded_.blocks, std::span(*table).subspan(start_.hit));
      std::fill_n(table->begin(), first, kNullBlock);
      table->resize(start_.hit);
    }
    if (!groups_.is_chained(group))
      end = root_of(sequence_, group, first);
    else if (end.depth > start_.hit)
      end = {sequence_.domain,
             start_.hit == 0 ? root_of(sequence_, group).uid : pool_.uid_of(device[start_.hit - 1]),
             static_cast<std::uint32_t>(start_.hit), group};
  }

  BlockPool& pool_;
  CacheGroups groups_;
  SequenceContent sequence_;
  std::size_t most_;
  bool may_promote_;
  const StepBlocks& step_;
  SequenceStart start_;
  std::vector<bool> has_searched_;
  PrefixHit unneeded_{};
};

}  // namespace

void append_blocks(std::vector<BlockId>& list, std::span<const BlockId> table) {
  std::copy_if(table.begin(), table.end(), std::back_inserter(list),
               [](BlockId block) { return block != kNullBlock; });
}

std::vector<BlockId> SequenceStart::blocks(Tier tier) const {
  std::vector<BlockId> list;
  for (const OfGroup& group : groups)
    append_blocks(list, tier == Tier::device ? group.device : group.host);
  return list;
}

std::size_t SequenceStart::host_places() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < hit; ++i)
    count += std::ranges::any_of(groups, [i](const auto& g) { return g.host[i] != kNullBlock; });
  return count;
}

SequenceStart find_start(BlockPool& pool, const SequenceContent& sequence, std::size_t most,
                         bool may_promote, const StepBlocks& step) {
  return Search(pool, sequence, most, may_promote, step).run();
}

std::vector<BlockId> find_blocks(BlockPool& pool, Tier tier, const SequenceContent& sequence,
                                 const Prefix& from, std::size_t end) {
  std::vector<BlockId> blocks(end - from.depth, kNullBlock);
  if (pool.groups().is_chained(from.group)) {
    std::ranges::copy(match(pool, tier, sequence, from, blocks.size()).blocks, blocks.begin());
    return blocks;
  }
  for (std::size_t i = from.depth; i < end; ++i) {
    const Prefix place = root_of(sequence, from.group, i);
    const PrefixHit there = match(pool, tier, sequence, place, 1);
    if (!there.blocks.empty()) blocks[i - from.depth] = there.blocks.front();
  }
  return blocks;
}

}  // namespace kvhive
