// What runs: blocks for its next tokens, and whom to preempt for them.

#include <algorithm>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/block_manager/round.hpp"
#include "base/check.hpp"

namespace kvhive {

void BlockManagerState::serve_running(Round& round) {
  const std::size_t most = round.request.running.size() + round.request.waiting.size();
  round.plan.work.reserve(most);
  round.under_way.work.reserve(most);
  running_order_.begin();
  for (const SeqId seq : round.request.running) {
    if (round.preempted.contains(seq)) continue;
    ++round.running;
    Sequence* const found = running_order_.find(sequences_, seq);
    KV_CHECK(found != nullptr, seq.value);
    Sequence& sequence = *found;
    const std::uint32_t tokens = std::min({next_tokens(sequence), round.budget, round.most_of_one});
    if (tokens == 0) continue;
    release_passed(sequence);
    if (!make_room(round, seq, sequence, sequence.begun() + tokens)) continue;
    schedule(round, seq, sequence, tokens);
  }
  if (!round.preempted.empty()) {
    const auto is_preempted = [&](const auto& part) { return round.preempted.contains(part.seq); };
    std::erase_if(round.plan.work, is_preempted);
    std::erase_if(round.under_way.work, is_preempted);
  }
  round.running = static_cast<std::uint32_t>(round.request.running.size() - round.preempted.size());
}

/// Domains whose tails make room for the domain, if they are given up: where its maximum is what
/// lacks, its own, else also those of domains without a minimum, which the blocks may be part of.
Tails::Domains BlockManagerState::whose_tails_help(std::size_t blocks, DomainId domain) const {
  return [&lanes = pool_.lanes(), own = pool_.lanes().of(domain),
          only_own = pool_.lanes().is_at_maximum(domain, blocks)](DomainId theirs) {
    return lanes.of(theirs) == own || (!only_own && lanes.limits_of(theirs).min == 0);
  };
}

/// The same for what other engines lack: tails of the domains whose requests wait there, and if the
/// whole tier has too few blocks, of all but those that have no more than they are sure of.
Tails::Domains BlockManagerState::whose_tails_help(const Lack& others) const {
  return [&lanes = pool_.lanes(), others](DomainId theirs) {
    return others.has(lanes.of(theirs)) || (others.of_all && !lanes.is_within_minimum(theirs, 0));
  };
}

/// Old ones are released, and what would help another engine that lacks blocks: it cannot ask.
void BlockManagerState::look_after_tails() {
  tails_.drop_old();
  if (!keeps_tails()) return;
  if (const Lack others = config_.others_lack(); others != Lack{})
    tails_.drop(whose_tails_help(others));
}

/// Releases them, if that is enough for so many blocks. A sequence that is being admitted holds the
/// tail that it was to copy itself: if it lacks just that, it has room in the next step.
bool BlockManagerState::give_up_tails(std::size_t blocks, DomainId domain) {
  const auto whose = whose_tails_help(blocks, domain);
  const std::size_t kept = tails_.kept(whose);
  if (kept == 0 || blocks > pool_.available(Tier::device, domain) + kept) return false;
  tails_.drop(whose);
  return true;
}

/// Allocates device blocks; if there are too few, those that are kept for forks, too. If there is a
/// host tier, the evicted contents are noted in `round`: their bytes stay until the step begins, so
/// that demote() can have them copied.
Expected<std::vector<BlockId>> BlockManagerState::allocate(Round& round, std::size_t blocks,
                                                           DomainId domain) {
  const bool may_demote = config_.prefix_caching && pool_.capacity(Tier::host) != 0;
  std::vector<Evicted>* const evicted = may_demote ? &round.evicted : nullptr;
  auto fresh = pool_.allocate(Tier::device, blocks, domain, evicted);
  if (!fresh && give_up_tails(blocks, domain))
    fresh = pool_.allocate(Tier::device, blocks, domain, evicted);
  return fresh;
}

/// Adds the demotions to the plan. Called last: by then this engine holds all host blocks that the
/// step itself needs, so that no demotion evicts them.
void BlockManagerState::demote(Round& round) {
  for (const Evicted& content : round.evicted)
    if (pool_.domain_of(content.block) != content.new_domain)
      round.plan.domain_changes.push_back({content.block, content.new_domain});
  if (round.evicted.empty() || !copy_policy_.demotion_pays()) return;
  round.under_way.demotions = pool_.demote(round.evicted);
  for (const auto& [content, destination, is_on_host_already] : round.under_way.demotions)
    if (!is_on_host_already)
      round.plan.demotions.push_back({index_of(content.block), index_of(destination)});
}

/// Releases the blocks that no token to come reads (vLLM: remove_skipped_blocks).
void BlockManagerState::release_passed(Sequence& sequence) {
  if (groups_.is_one_full()) return;
  std::vector<BlockId> passed;
  for (std::size_t g = 0; g < groups_.count; ++g) {
    auto& table = sequence.tables[g].device;
    const std::size_t end = std::min(first_place(groups_.id(g), sequence.computed), table.size());
    std::size_t first = end;
    while (first > 0 && table[first - 1] != kNullBlock) --first;
    passed.assign(table.begin() + std::ptrdiff_t(first), table.begin() + std::ptrdiff_t(end));
    std::fill_n(table.begin() + std::ptrdiff_t(first), passed.size(), kNullBlock);
    pool_.release(passed);
  }
}

/// How many blocks the tables lack for the sequence's first `tokens` tokens.
std::size_t BlockManagerState::lacking_blocks(const Sequence& sequence, std::size_t tokens) const {
  std::size_t lacking = 0;
  for (const Table& table : sequence.tables)
    lacking += std::max(blocks_for(tokens), table.device.size()) - table.device.size();
  return lacking;
}

/// Appends fresh blocks to the tables, as many as lacking_blocks() says.
void BlockManagerState::add_blocks(Sequence& sequence, std::span<const BlockId> fresh,
                                   std::size_t tokens) {
  for (std::size_t g = 0; g < groups_.count; ++g) {
    auto& table = sequence.tables[g].device;
    const std::size_t from = table.size(), to = std::max(blocks_for(tokens), from);
    table.insert(table.end(), fresh.begin(), fresh.begin() + std::ptrdiff_t(to - from));
    fresh = fresh.subspan(to - from);
    announce(sequence, groups_.id(g), from);
  }
}

/// Gives the sequence the blocks that it lacks for its first `tokens` tokens, and preempts other
/// sequences for them if necessary. False if the sequence has to wait, or was preempted itself.
bool BlockManagerState::make_room(Round& round, SeqId seq, Sequence& sequence, std::size_t tokens) {
  const std::size_t blocks = lacking_blocks(sequence, tokens);
  while (blocks != 0) {
    if (auto fresh = allocate(round, blocks, sequence.domain)) {
      add_blocks(sequence, *fresh, tokens);
      return true;
    }
    // This step swaps out enough blocks already; the sequence can allocate them in the next step.
    if (round.leaving_blocks >= blocks) {
      round.leaving_blocks -= blocks;
      return false;
    }
    const bool is_at_maximum = pool_.lanes().is_at_maximum(sequence.domain, blocks);
    const auto victim = next_victim(round, seq, is_at_maximum);
    round.lack.add(pool_.lanes().of(sequence.domain));
    if (!victim) return false;
    if (is_at_maximum)
      round.at_maximum.insert(sequence.domain);
    else
      round.lack.of_all = true;
    preempt(round, *victim);
    if (*victim == seq) return false;
  }
  return true;
}

/// The next sequence to preempt so that `seq`, which runs, gets blocks: in the order of
/// StepRequest::victims, but another domain's only if that helps and takes nothing from its
/// minimum.
std::optional<SeqId> BlockManagerState::next_victim(Round& round, SeqId seq,
                                                    bool is_at_maximum) const {
  const auto& victims = round.request.victims;
  const DomainId domain = sequences_.at(seq).domain;
  const auto is_eligible = [&](SeqId victim) {
    if (round.preempted.contains(victim)) return false;
    const DomainId other = sequences_.at(victim).domain;
    return other == domain || (!is_at_maximum && !pool_.lanes().is_within_minimum(other, 0));
  };
  while (round.next_victim < victims.size() && round.preempted.contains(victims[round.next_victim]))
    ++round.next_victim;
  const auto found =
      std::find_if(victims.begin() + std::ptrdiff_t(round.next_victim), victims.end(), is_eligible);
  if (found == victims.end()) return std::nullopt;
  return *found;
}

void BlockManagerState::preempt(Round& round, SeqId victim) {
  Sequence& sequence = sequences_.at(victim);
  // If the sequence was scheduled earlier in this round, its tokens go back to the budget.
  round.budget += std::exchange(sequence.in_flight, 0);
  if (is_to_swap(sequence) && swap_out(round, sequence)) {
    round.under_way.swapping_out.push_back(victim);
    bump(pool_.counters()["preemptions_swap"], 1);
  } else {
    forget_progress(round, sequence);
    bump(pool_.counters()["preemptions_recompute"], 1);
  }
  single_flight_.withdraw(sequence.flight);
  round.preempted.insert(victim);
  round.plan.outcome.preempted.push_back(victim);
}

bool BlockManagerState::is_to_swap(const Sequence& sequence) {
  if (config_.preemption != PreemptionMode::automatic)
    return config_.preemption == PreemptionMode::swap;
  std::size_t blocks = 0;
  for (const Table& table : sequence.tables) {
    const std::size_t end = std::min(table.device.size(), blocks_for(sequence.computed));
    blocks +=
        end - static_cast<std::size_t>(std::count(
                  table.device.begin(), table.device.begin() + std::ptrdiff_t(end), kNullBlock));
  }
  return copy_policy_.swap_pays(blocks, sequence.computed);
}

/// Moves a sequence to the host tier. False if none of its blocks is computed, or the host tier has
/// no room.
bool BlockManagerState::swap_out(Round& round, Sequence& sequence) {
  if (sequence.computed == 0) return false;
  std::size_t missing = 0;
  for (Table& table : sequence.tables) missing += find_copies(sequence, table);
  auto fresh = pool_.allocate(Tier::host, missing, sequence.domain);
  if (!fresh) {
    for (Table& table : sequence.tables) {
      PrefixHit there{};
      append_blocks(there.blocks, table.host);
      pool_.cancel(there);
      table.host.clear();
    }
    return false;
  }
  std::span<const BlockId> rest(*fresh);
  for (Table& table : sequence.tables) rest = copy_out(round, sequence, table, rest);
  sequence.is_swapped_out = true;
  return true;
}

/// Fills a group's host table with what the host tier has of it already. Returns how many blocks
/// are missing.
std::size_t BlockManagerState::find_copies(const Sequence& sequence, Table& table) {
  const GroupId group = table.published.group;
  const auto first = static_cast<std::uint32_t>(first_place(group, sequence.computed));
  const Prefix from = root_of(sequence, group, first);
  const auto there = find_blocks(pool_, Tier::host, content_of(sequence), from,
                                 std::max(table.published.depth, first));
  table.host.assign(first, kNullBlock);
  table.host.insert(table.host.end(), there.begin(), there.end());
  table.host.resize(blocks_for(sequence.computed), kNullBlock);
  table.host_published = from;
  if (groups_.is_chained(group))  // found without a gap
    for (; table.host_published.depth < there.size() &&
           table.host[table.host_published.depth] != kNullBlock;
         ++table.host_published.depth)
      table.host_published.uid = pool_.uid_of(table.host[table.host_published.depth]);
  return static_cast<std::size_t>(
      std::count(table.host.begin() + first, table.host.end(), kNullBlock));
}

/// Has the blocks copied that the host tier lacks, to the first blocks of `fresh`. Returns the rest
/// of `fresh`. The device blocks leave with the step.
std::span<const BlockId> BlockManagerState::copy_out(Round& round, const Sequence& sequence,
                                                     Table& table, std::span<const BlockId> fresh) {
  const GroupId group = table.published.group;
  for (std::size_t i = first_place(group, sequence.computed); i < table.host.size(); ++i) {
    if (table.host[i] != kNullBlock) continue;
    table.host[i] = fresh.front();
    fresh = fresh.subspan(1);
    round.plan.swap_out.push_back({index_of(table.device[i]), index_of(table.host[i])});
  }
  std::vector<BlockId>& leaving = round.under_way.leaving;
  const std::size_t before = leaving.size();
  append_blocks(leaving, table.device);
  round.leaving_blocks += leaving.size() - before;
  table.device.clear();
  table.published = root_of(sequence, group);
  return fresh;
}

void BlockManagerState::forget_progress(Round& round, Sequence& sequence) {
  for (const Table& table : sequence.tables) {
    std::vector<BlockId> held;
    append_blocks(held, table.device);
    give_back(round, held);
  }
  sequence.tables.assign(groups_.count, {});
  sequence.computed = 0;
}

/// Other processes may take the released blocks at once. So content that was evicted from them in
/// this round cannot be demoted any more.
void BlockManagerState::give_back(Round& round, std::span<const BlockId> blocks) {
  const std::unordered_set<BlockId> given_back(blocks.begin(), blocks.end());
  std::erase_if(round.evicted,
                [&](const Evicted& content) { return given_back.contains(content.block); });
  pool_.release(blocks);
}

}  // namespace kvhive
