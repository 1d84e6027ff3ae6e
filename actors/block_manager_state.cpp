#include "actors/block_manager_state.hpp"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// The extra keys of `count` blocks from `first` on; none at all without a salt.
std::span<const ExtraKey> extras_of(const std::vector<ExtraKey>& extras, std::size_t first,
                                    std::size_t count) {
  if (extras.empty()) return {};
  return std::span(extras).subspan(first, count);
}

}  // namespace

/// The state of one plan() call.
struct BlockManagerState::Round {
  const StepRequest& request;
  StepPlan plan;
  std::uint32_t budget;
  std::uint32_t running = 0;
  std::size_t next_victim = 0;
  /// Device blocks that this step copies to the host. They can be allocated in the next step, not
  /// in this one.
  std::size_t leaving_blocks = 0;
  std::unordered_set<SeqId> preempted;
  bool lacks_blocks = false;  ///< the pool, and not only a domain, has no room for more
  /// Domains that have as many blocks as they may, all held: nothing of theirs is admitted.
  std::set<DomainId> at_maximum{};
  std::vector<Evicted> evicted;  ///< contents that this step's allocations evicted from the device
};

BlockManagerState::BlockManagerState(BlockPool& pool, const BlockManagerConfig& config)
    : pool_(pool),
      hasher_(pool.hasher()),
      config_(config),
      tokens_per_block_(pool.tokens_per_block()),
      copy_policy_(tokens_per_block_) {}

StepPlan BlockManagerState::plan(const StepRequest& request) {
  finish_step();
  apply_request(request);

  Round round{.request = request,
              .plan = {},
              .budget = request.token_budget,
              .preempted = {},
              .evicted = {}};
  round.plan.step = request.step;
  serve_running(round);
  // Not after a preemption, as vLLM does; but one that a domain's maximum has caused concerns
  // nobody else.
  const bool concerns_all = round.lacks_blocks || !round.plan.swap_out.empty();
  if (round.preempted.empty() || !concerns_all) admit_waiting(round);
  round.plan.outcome.at_maximum.assign(round.at_maximum.begin(), round.at_maximum.end());
  demote(round);
  for (const auto& work : round.plan.work) {
    in_flight_.push_back(work.seq);
    round.plan.outcome.scheduled_tokens += static_cast<std::uint32_t>(work.tokens.size());
  }
  load_ = {round.plan.copied_blocks(), round.plan.outcome.scheduled_tokens, round.plan.work.size()};

  SlotCounters& counters = pool_.counters();
  counters["running"].store(round.running, std::memory_order_relaxed);
  counters["waiting"].store(request.waiting_in_all -
                                static_cast<std::uint32_t>(round.plan.outcome.admitted.size() +
                                                           round.plan.outcome.lost.size()) +
                                static_cast<std::uint32_t>(round.preempted.size()),
                            std::memory_order_relaxed);
  return std::move(round.plan);
}

// -- the end of the previous step -----------------------------------------------------------------

void BlockManagerState::finish_step(const StepDone& done) {
  copy_policy_.learn(load_.copied_blocks, load_.tokens, load_.sequences, done.times);
  bump(pool_.counters()["generated_tokens"], done.sampled.size());
  if (load_.tokens != 0) pool_.counters().observe("iteration_tokens_total", load_.tokens);
  load_ = {};
  // Before the publications below, so that content that was demoted and computed again meanwhile
  // gets its old uid.
  pool_.finish_demotion(demotions_);
  demotions_.clear();
  for (const SeqId seq : in_flight_) {
    Sequence& sequence = sequences_.at(seq);
    sequence.computed += std::exchange(sequence.in_flight, 0);
    publish(sequence, sequence.published, sequence.blocks);
  }
  in_flight_.clear();
  // The host copies of a swapped-out sequence are published, so that all engines can find them.
  for (const SeqId seq : swapping_out_) {
    Sequence& sequence = sequences_.at(seq);
    publish(sequence, sequence.host_published, sequence.host);
  }
  swapping_out_.clear();
  pool_.release(leaving_);
  leaving_.clear();
}

/// Publishes the computed blocks behind `published` and advances it. `blocks` is the sequence's
/// table in one of the tiers.
void BlockManagerState::publish(const Sequence& sequence, Prefix& published,
                                std::span<const BlockId> blocks) {
  if (!config_.prefix_caching) return;
  const std::size_t from = published.depth, to = sequence.computed / tokens_per_block_;
  if (from >= to) return;
  published = pool_.publish(published, blocks.subspan(from, to - from),
                            std::span<const Hash128>(sequence.chain).subspan(from, to - from),
                            std::span<const TokenId>(sequence.tokens)
                                .subspan(from * tokens_per_block_, (to - from) * tokens_per_block_),
                            extras_of(sequence.extras, from, to - from));
}

/// Announces which content the sequence's blocks from index `from` on will hold, for those blocks
/// whose tokens are all known.
void BlockManagerState::announce(const Sequence& sequence, std::size_t from) {
  const std::size_t to = std::min(sequence.blocks.size(), sequence.chain.size());
  if (!config_.prefix_caching || from >= to) return;
  pool_.announce(std::span(sequence.blocks).subspan(from, to - from),
                 std::span(sequence.chain).subspan(from, to - from));
}

void BlockManagerState::apply_request(const StepRequest& request) {
  for (const NewSequence& added : request.added) {
    Sequence sequence;
    sequence.domain = added.domain;
    sequence.tokens = added.tokens;
    sequence.sampling = added.sampling;
    sequence.logprobs = added.logprobs;
    sequence.published = BlockPool::root(sequence.domain);
    sequence.is_counted = added.is_counted;
    sequence.sink = added.sink;
    sequence.salt = added.salt;
    sequence.computed_before = added.computed_before;
    name_full_blocks(sequence);
    sequences_.emplace(added.seq, std::move(sequence));
  }
  for (const AppendedToken& appended : request.appended) {
    Sequence& sequence = sequences_.at(appended.seq);
    sequence.tokens.push_back(appended.token);
    name_full_blocks(sequence);
  }
  for (const SeqId seq : request.ended) end(seq);
}

void BlockManagerState::name_full_blocks(Sequence& sequence) const {
  hasher_.extend(sequence.chain, sequence.domain, sequence.tokens, tokens_per_block_,
                 sequence.salt);
  if (is_none(sequence.salt)) return;
  sequence.extras.resize(sequence.chain.size(), kNoExtraKey);
  if (!sequence.extras.empty()) sequence.extras.front() = sequence.salt;
}

void BlockManagerState::end(SeqId seq) {
  const auto found = sequences_.find(seq);
  KV_CHECK(found != sequences_.end(), seq.value);
  pool_.release(found->second.blocks);
  pool_.release(found->second.host);
  sequences_.erase(found);
}

// -- running sequences ----------------------------------------------------------------------------

void BlockManagerState::serve_running(Round& round) {
  for (const SeqId seq : round.request.running) {
    if (round.preempted.count(seq) != 0) continue;
    ++round.running;
    Sequence& sequence = sequences_.at(seq);
    const auto lacking = static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.computed;
    const std::uint32_t tokens = std::min(lacking, round.budget);
    if (tokens == 0) continue;
    const std::size_t needed = blocks_for(sequence.computed + tokens);
    if (needed > sequence.blocks.size() && !make_room(round, seq, needed - sequence.blocks.size()))
      continue;
    schedule(round, seq, sequence, tokens);
  }
  std::erase_if(round.plan.work,
                [&](const auto& work) { return round.preempted.count(work.seq) != 0; });
  round.running = static_cast<std::uint32_t>(round.request.running.size() - round.preempted.size());
}

/// Allocates device blocks. If there is a host tier, the evicted contents are noted in `round`:
/// their bytes stay until the step begins, so that demote() can have them copied.
Expected<std::vector<BlockId>> BlockManagerState::allocate(Round& round, std::size_t blocks,
                                                           DomainId domain) {
  const bool may_demote = config_.prefix_caching && pool_.capacity(Tier::host) != 0;
  return pool_.allocate(Tier::device, blocks, domain, may_demote ? &round.evicted : nullptr);
}

/// Adds the demotions to the plan. Called last: by then this engine holds all host blocks that the
/// step itself needs, so that no demotion evicts them.
void BlockManagerState::demote(Round& round) {
  for (const Evicted& content : round.evicted)
    if (pool_.domain_of(content.block) != content.new_domain)
      round.plan.domain_changes.push_back({content.block, content.new_domain});
  if (round.evicted.empty() || !copy_policy_.demotion_pays()) return;
  demotions_ = pool_.demote(round.evicted);
  for (const auto& [content, destination, is_on_host_already] : demotions_)
    if (!is_on_host_already)
      round.plan.demotions.push_back({index_of(content.block), index_of(destination)});
}

/// Appends `blocks` new blocks to the sequence's table, and preempts other sequences for them if
/// necessary. False if the sequence has to wait, or was preempted itself.
bool BlockManagerState::make_room(Round& round, SeqId seq, std::size_t blocks) {
  while (true) {
    Sequence& sequence = sequences_.at(seq);
    if (auto fresh = allocate(round, blocks, sequence.domain)) {
      auto& table = sequence.blocks;
      table.insert(table.end(), fresh->begin(), fresh->end());
      announce(sequence, table.size() - fresh->size());
      return true;
    }
    // This step swaps out enough blocks already; the sequence can allocate them in the next step.
    if (round.leaving_blocks >= blocks) {
      round.leaving_blocks -= blocks;
      return false;
    }
    const bool is_at_maximum = pool_.lanes().is_at_maximum(sequence.domain, blocks);
    const auto victim = next_victim(round, seq, is_at_maximum);
    if (!victim) return false;
    if (is_at_maximum)
      round.at_maximum.insert(sequence.domain);
    else
      round.lacks_blocks = true;
    preempt(round, *victim);
    if (*victim == seq) return false;
  }
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
  if (config_.preemption == PreemptionMode::swap && swap_out(round, sequence)) {
    swapping_out_.push_back(victim);
    bump(pool_.counters()["preemptions_swap"], 1);
  } else {
    forget_progress(round, sequence);
    bump(pool_.counters()["preemptions_recompute"], 1);
  }
  round.preempted.insert(victim);
  round.plan.outcome.preempted.push_back(victim);
}

/// Moves a sequence to the host tier. False if none of its blocks is computed, or the host tier has
/// no room.
bool BlockManagerState::swap_out(Round& round, Sequence& sequence) {
  const std::size_t blocks = blocks_for(sequence.computed);
  if (blocks == 0) return false;
  const std::span<const Hash128> chain = std::span(sequence.chain).first(sequence.published.depth);
  PrefixHit there =
      pool_.match(Tier::host, BlockPool::root(sequence.domain), chain,
                  std::span<const TokenId>(sequence.tokens).first(chain.size() * tokens_per_block_),
                  extras_of(sequence.extras, 0, chain.size()));
  auto fresh = pool_.allocate(Tier::host, blocks - there.blocks.size(), sequence.domain);
  if (!fresh) {
    pool_.cancel(there);
    return false;
  }
  for (std::size_t i = 0; i < fresh->size(); ++i)
    round.plan.swap_out.push_back(
        {index_of(sequence.blocks[there.blocks.size() + i]), index_of((*fresh)[i])});
  sequence.host = std::move(there.blocks);
  sequence.host.insert(sequence.host.end(), fresh->begin(), fresh->end());
  sequence.host_published = there.end;
  round.leaving_blocks += sequence.blocks.size();
  leaving_.insert(leaving_.end(), sequence.blocks.begin(), sequence.blocks.end());
  sequence.blocks.clear();
  sequence.published = BlockPool::root(sequence.domain);
  return true;
}

void BlockManagerState::forget_progress(Round& round, Sequence& sequence) {
  give_back(round, sequence.blocks);
  sequence.blocks.clear();
  sequence.computed = 0;
  sequence.published = BlockPool::root(sequence.domain);
}

/// Other processes may take the released blocks at once. So content that was evicted from them in
/// this round cannot be demoted any more.
void BlockManagerState::give_back(Round& round, std::span<const BlockId> blocks) {
  const std::unordered_set<BlockId> given_back(blocks.begin(), blocks.end());
  std::erase_if(round.evicted,
                [&](const Evicted& content) { return given_back.contains(content.block); });
  pool_.release(blocks);
}

// -- waiting sequences ----------------------------------------------------------------------------

/// Admits in the given order, and nothing after the first that finds no room, as vLLM does. With
/// limits: a domain that has as many blocks as it may keeps nobody else waiting; and where the pool
/// is full, domains are still admitted to what they are sure of.
void BlockManagerState::admit_waiting(Round& round) {
  for (const SeqId seq : round.request.waiting) {
    if (round.budget == 0 || round.running >= config_.max_num_seqs) return;
    const Sequence& sequence = sequences_.at(seq);
    const std::size_t blocks = blocks_for(sequence.tokens.size());
    if (round.at_maximum.contains(sequence.domain)) continue;
    if (round.lacks_blocks && pool_.lanes().count() == 1) return;
    if (round.lacks_blocks && !pool_.lanes().is_within_minimum(sequence.domain, blocks)) continue;
    if (rejects(round, seq)) continue;
    switch (admit(round, seq)) {
      case Admitted::yes: ++round.running; break;
      case Admitted::no_room:
        if (pool_.lanes().is_at_maximum(sequence.domain, blocks))
          round.at_maximum.insert(sequence.domain);
        else
          round.lacks_blocks = true;
        break;
      case Admitted::lost: round.plan.outcome.lost.push_back(seq); break;
    }
  }
}

/// Rejects a sequence that can never be admitted.
bool BlockManagerState::rejects(Round& round, SeqId seq) {
  const Sequence& sequence = sequences_.at(seq);
  const std::size_t most = pool_.capacity(Tier::device, sequence.domain);
  if (blocks_for(sequence.tokens.size()) <= most) return false;
  const bool is_limited = most < pool_.capacity(Tier::device);
  round.plan.outcome.rejected.push_back(
      {seq, Error{Errc::never_fits,
                  "the request has " + std::to_string(sequence.tokens.size()) + " tokens, " +
                      (is_limited ? "its domain's part of the pool" : "the whole pool") +
                      " holds " + std::to_string(most * tokens_per_block_) +
                      (is_limited ? "; shorten it, or change the domains' shares of the blocks "
                                    "(shares, min-blocks, max-blocks)"
                                  : "; shorten it or give the pool more memory")}});
  return true;
}

BlockManagerState::Admitted BlockManagerState::admit(Round& round, SeqId seq) {
  Sequence& sequence = sequences_.at(seq);
  Start start = find_start(sequence);
  const auto total = static_cast<std::uint32_t>(sequence.tokens.size());
  const std::uint32_t tokens = std::min(total - start.computed, round.budget);
  const std::size_t held = start.device.blocks.size();
  const auto watermark = static_cast<std::size_t>(
      config_.watermark * static_cast<double>(pool_.capacity(Tier::device)));

  // Admit a sequence only if all of its tokens fit (vLLM: scheduler_reserve_full_isl). available()
  // is a hint, so if no sequence is running, the engine tries even if it says no.
  const bool fits = round.running == 0 ||
                    (blocks_for(total) - held + watermark <= pool_.available(Tier::device) &&
                     blocks_for(total) - held <= pool_.available(Tier::device, sequence.domain));
  auto fresh = fits ? allocate(round, blocks_for(start.computed + tokens) - held, sequence.domain)
                    : Expected<std::vector<BlockId>>(failure(Errc::pool_exhausted, ""));
  // Asked last: from then on the sequence is this engine's, and can be admitted.
  const bool is_lost = fresh && sequence.sink && !sequence.sink->start();
  if (!fresh || is_lost) {
    pool_.cancel(start.device);
    pool_.cancel(start.host);
    if (fresh) give_back(round, *fresh);
    return is_lost ? Admitted::lost : Admitted::no_room;
  }

  for (std::size_t i = 0; i < start.source.size(); ++i)
    round.plan.swap_in.push_back({index_of(start.source[i]), index_of((*fresh)[i])});
  leaving_.insert(leaving_.end(), sequence.host.begin(), sequence.host.end());
  leaving_.insert(leaving_.end(), start.host.blocks.begin(), start.host.blocks.end());
  bump(pool_.counters()["promoted_blocks"], start.host.blocks.size());
  if (!std::exchange(sequence.is_counted, true)) count_first_admission(sequence, start);
  const std::uint32_t before = std::exchange(sequence.computed_before, 0);
  bump(pool_.counters()["failover_recomputed_tokens"], before - std::min(before, start.computed));
  sequence.host.clear();
  sequence.blocks = std::move(start.device.blocks);
  sequence.blocks.insert(sequence.blocks.end(), fresh->begin(), fresh->end());
  announce(sequence, held);
  sequence.published = start.device.end;
  sequence.computed = start.computed;
  round.plan.outcome.admitted.push_back({seq, start.computed});
  schedule(round, seq, sequence, tokens);
  return Admitted::yes;
}

/// Counts a lookup in the statistics. Called only when a request is first admitted: not at each
/// attempt, because a request that does not fit is looked up in every step, and not after a
/// preemption or a failover, because the request then finds its own blocks.
void BlockManagerState::count_first_admission(const Sequence& sequence, const Start& start) {
  SlotCounters& counters = pool_.counters();
  bump(counters["queried_blocks"], start.looked_up);
  bump(counters["hit_blocks"], start.device.blocks.size() + start.host.blocks.size());
  bump(counters["host_hit_blocks"], start.host.blocks.size());
  bump(counters["prompt_tokens"], sequence.tokens.size());
  bump(counters["cached_tokens"], start.computed);
  const auto& found = start.device.blocks;
  const auto own = static_cast<std::size_t>(std::count_if(
      found.begin(), found.end(), [this](BlockId block) { return pool_.is_own(block); }));
  bump(counters["hit_tokens_own"], own * tokens_per_block_);
  bump(counters["hit_tokens_sibling"], (found.size() - own) * tokens_per_block_);
  bump(counters["hit_tokens_host"], start.host.blocks.size() * tokens_per_block_);
}

/// Finds the part of the sequence that need not be computed. The last token must be computed,
/// because its logits are needed; since hits are whole blocks, its whole block is computed.
BlockManagerState::Start BlockManagerState::find_start(Sequence& sequence) {
  Start start{0, {{}, BlockPool::root(sequence.domain)}, {}, {}, 0};
  const std::span<const TokenId> tokens(sequence.tokens);
  const std::size_t limit = (tokens.size() - 1) / tokens_per_block_;
  const std::span<const Hash128> chain =
      std::span<const Hash128>(sequence.chain).first(config_.prefix_caching ? limit : 0);
  start.looked_up = chain.size();
  start.device = pool_.match(Tier::device, start.device.end, chain,
                             tokens.first(chain.size() * tokens_per_block_),
                             extras_of(sequence.extras, 0, chain.size()));
  const std::size_t held = start.device.blocks.size();
  start.computed = static_cast<std::uint32_t>(held * tokens_per_block_);

  if (!sequence.host.empty()) {
    if (sequence.computed > start.computed) {
      start.source.assign(sequence.host.begin() + static_cast<std::ptrdiff_t>(held),
                          sequence.host.end());
      start.computed = sequence.computed;
    }
  } else if (held < chain.size() && pool_.capacity(Tier::host) != 0 &&
             copy_policy_.promotion_pays()) {
    start.host = pool_.match(
        Tier::host, start.device.end, chain.subspan(held),
        tokens.subspan(held * tokens_per_block_, (chain.size() - held) * tokens_per_block_),
        extras_of(sequence.extras, held, chain.size() - held));
    start.source = start.host.blocks;
    start.computed += static_cast<std::uint32_t>(start.source.size() * tokens_per_block_);
  }
  return start;
}

void BlockManagerState::schedule(Round& round, SeqId seq, Sequence& sequence,
                                 std::uint32_t tokens) {
  ScheduledSequence work;
  work.seq = seq;
  work.start = sequence.computed;
  const auto first = sequence.tokens.begin() + sequence.computed;
  work.tokens.assign(first, first + tokens);
  const std::size_t blocks = blocks_for(sequence.computed + tokens);
  work.blocks.assign(sequence.blocks.begin(), sequence.blocks.begin() + blocks);
  work.samples = sequence.computed + tokens == sequence.tokens.size();
  work.sampling = sequence.sampling;
  work.logprobs = sequence.logprobs;
  round.plan.work.push_back(std::move(work));
  round.budget -= tokens;
  sequence.in_flight = tokens;
}

std::uint32_t BlockManagerState::index_of(BlockId block) const {
  return block.value - pool_.memory().tier_layout(pool_.memory().tier_of(block)).first_block;
}

}  // namespace kvhive
