#include "actors/block_manager_state.hpp"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/check.hpp"

namespace kvhive {

/// The state of one plan() call.
struct BlockManagerState::Round {
  const StepRequest& request;
  StepPlan plan;
  std::uint32_t budget;
  std::uint32_t most_of_one;  ///< tokens that one sequence may compute
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
  StepBlocks filled;             ///< blocks that this step's sequences fill
};

BlockManagerState::BlockManagerState(BlockPool& pool, const BlockManagerConfig& config)
    : pool_(pool),
      groups_(pool.groups()),
      hasher_(pool.hasher()),
      config_(config),
      tokens_per_block_(pool.tokens_per_block()),
      copy_policy_(tokens_per_block_),
      single_flight_(pool.claims(), config.clock, config.stretch) {}

StepPlan BlockManagerState::plan(const StepRequest& request) {
  finish_step();
  apply_request(request);
  resets_ = pool_.memory().resets();

  Round round{.request = request,
              .plan = {},
              .budget = request.token_budget,
              .most_of_one = most_tokens(request),
              .preempted = {},
              .evicted = {},
              .filled = StepBlocks(groups_, tokens_per_block_)};
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

/// A long prompt must not take all tokens of a step from others, if there are others (vLLM:
/// long_prefill_token_threshold).
std::uint32_t BlockManagerState::most_tokens(const StepRequest& request) const {
  const bool is_alone = request.running.size() + request.waiting_in_all <= 1;
  const std::uint32_t most = config_.long_prefill_token_threshold;
  return is_alone || most == 0 ? request.token_budget : most;
}

// -- the end of the previous step -----------------------------------------------------------------

void BlockManagerState::finish_step(const StepDone& done) {
  copy_policy_.learn(load_.copied_blocks, load_.tokens, load_.sequences, done.times);
  if (load_.tokens != 0) pool_.counters().observe("iteration_tokens_total", load_.tokens);
  load_ = {};
  // Before the publications below, so that content that was demoted and computed again meanwhile
  // gets its old uid.
  pool_.finish_demotion(demotions_);
  demotions_.clear();
  for (const SeqId seq : in_flight_) {
    Sequence& sequence = sequences_.at(seq);
    sequence.computed += std::exchange(sequence.in_flight, 0);
    sequence.computed -= static_cast<std::uint32_t>(sequence.drafts.size());
    std::optional<Claim> passed;
    if (config_.single_flight && config_.prefix_caching)
      passed = single_flight_.advance(sequence.flight, claimable(sequence),
                                      sequence.computed / tokens_per_block_, most_found(sequence));
    for (Table& table : sequence.tables) publish(sequence, table.published, table.device);
    single_flight_.withdraw(passed);
  }
  // Behind what was known when the step began, as in vLLM: of equal blocks the first is found.
  append(done.sampled);
  for (const PromptScores& scores : done.scored)
    sequences_.at(scores.seq).scored += static_cast<std::uint32_t>(scores.tokens.size());
  for (const SeqId seq : in_flight_) keep_right_drafts(sequences_.at(seq));
  in_flight_.clear();
  // The host copies of a swapped-out sequence are published, so that all engines can find them.
  for (const SeqId seq : swapping_out_) {
    Sequence& sequence = sequences_.at(seq);
    for (Table& table : sequence.tables) publish(sequence, table.host_published, table.host);
  }
  swapping_out_.clear();
  pool_.release(leaving_);
  leaving_.clear();
}

void BlockManagerState::append(std::span<const SampledToken> sampled) {
  bump(pool_.counters()["generated_tokens"], sampled.size());
  for (const SampledToken& each : sampled) {
    Sequence& sequence = sequences_.at(each.seq);
    sequence.tokens.push_back(each.token.token);
    sequence.names.extend(hasher_, sequence.tokens);
  }
}

/// The KV of drafts that were right is there, and the tokens are appended; what was computed for
/// the others, the next step overwrites. A step that sampled nothing has no right drafts.
void BlockManagerState::keep_right_drafts(Sequence& sequence) {
  const std::size_t drafts = std::exchange(sequence.drafts, {}).size();
  if (drafts == 0) return;
  const std::size_t known =
      std::max<std::size_t>(sequence.tokens.size(), sequence.computed + 1) - 1;
  const std::size_t right = std::min(drafts, known - sequence.computed);
  sequence.computed += static_cast<std::uint32_t>(right);
  for (Table& table : sequence.tables) publish(sequence, table.published, table.device);
  bump(pool_.counters()["drafts"], 1);
  bump(pool_.counters()["draft_tokens"], drafts);
  bump(pool_.counters()["accepted_draft_tokens"], right);
}

/// Publishes the computed blocks behind `published` and advances it. `table` is the sequence's in
/// one group and tier.
void BlockManagerState::publish(const Sequence& sequence, Prefix& published,
                                std::span<const BlockId> table) {
  if (!config_.prefix_caching) return;
  const std::size_t to = sequence.computed / tokens_per_block_;
  if (published.depth >= to) return;
  if (groups_.is_chained(published.group)) {
    // Blocks that another sequence of this step has filled and published.
    while (published.depth < to && pool_.is_published(table[published.depth])) {
      published.uid = pool_.uid_of(table[published.depth]);
      ++published.depth;
    }
    if (published.depth == to) return;
    published =
        publish_run(sequence, published, table.subspan(published.depth, to - published.depth));
    return;
  }
  // Some of these blocks may have been found in the pool.
  for (; published.depth < to; ++published.depth) {
    const auto block = table.subspan(published.depth, 1);
    if (block.front() != kNullBlock && !pool_.is_published(block.front()))
      publish_run(sequence, published, block);
  }
}

Prefix BlockManagerState::publish_run(const Sequence& sequence, const Prefix& from,
                                      std::span<const BlockId> blocks) {
  const auto extras = sequence.names.extras(from.group);
  return pool_.publish(
      from, blocks, sequence.names.names(from.group).subspan(from.depth, blocks.size()),
      std::span<const TokenId>(sequence.tokens)
          .subspan(from.depth * tokens_per_block_, blocks.size() * tokens_per_block_),
      extras.empty() ? extras : extras.subspan(from.depth, blocks.size()));
}

/// Announces which content the sequence's blocks in a group from place `from` on will hold, for
/// those blocks whose tokens are all known.
void BlockManagerState::announce(const Sequence& sequence, GroupId group, std::size_t from) {
  const std::span<const BlockId> table = sequence.tables[groups_.place(group)].device;
  const std::size_t to = std::min(table.size(), sequence.names.blocks());
  if (!config_.prefix_caching || from >= to) return;
  pool_.announce(table.subspan(from, to - from),
                 sequence.names.names(group).subspan(from, to - from));
}

void BlockManagerState::apply_request(const StepRequest& request) {
  for (const NewSequence& added : request.added) {
    Sequence sequence{.domain = added.domain,
                      .tokens = added.tokens,
                      .sampling = added.sampling,
                      .logprobs = added.logprobs,
                      .adapter = added.adapter,
                      .names = SequenceNames(groups_, added.domain, tokens_per_block_, added.salt),
                      .tables = std::vector<Table>(groups_.count),
                      .sink = added.sink};
    sequence.is_counted = added.is_counted;
    sequence.computed_before = added.computed_before;
    sequence.reads_cache = added.reads_cache;
    sequence.to_score = added.scored_tokens;
    sequence.prompt_logprobs = added.prompt_logprobs;
    sequence.logits = added.logits;
    sequence.prompt_tokens = added.prompt_tokens;
    sequence.names.extend(hasher_, sequence.tokens);
    sequences_.emplace(added.seq, std::move(sequence));
  }
  for (const Drafts& drafts : request.drafts) sequences_.at(drafts.seq).drafts = drafts.tokens;
  for (const SeqId seq : request.ended) end(seq);
}

void BlockManagerState::end(SeqId seq) {
  const auto found = sequences_.find(seq);
  KV_CHECK(found != sequences_.end(), seq.value);
  single_flight_.withdraw(found->second.flight);
  for (const Table& table : found->second.tables)
    for (const auto* blocks : {&table.device, &table.host}) {
      std::vector<BlockId> held;
      append_blocks(held, *blocks);
      pool_.release(held);
    }
  sequences_.erase(found);
}

// -- running sequences ----------------------------------------------------------------------------

void BlockManagerState::serve_running(Round& round) {
  for (const SeqId seq : round.request.running) {
    if (round.preempted.count(seq) != 0) continue;
    ++round.running;
    Sequence& sequence = sequences_.at(seq);
    const auto known = static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.computed;
    const auto wanted = known + static_cast<std::uint32_t>(sequence.drafts.size());
    const std::uint32_t tokens = std::min({wanted, round.budget, round.most_of_one});
    if (tokens == 0) continue;
    release_passed(sequence);
    if (!make_room(round, seq, sequence.computed + tokens)) continue;
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
bool BlockManagerState::make_room(Round& round, SeqId seq, std::size_t tokens) {
  const std::size_t blocks = lacking_blocks(sequences_.at(seq), tokens);
  while (blocks != 0) {
    Sequence& sequence = sequences_.at(seq);
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
    if (!victim) return false;
    if (is_at_maximum)
      round.at_maximum.insert(sequence.domain);
    else
      round.lacks_blocks = true;
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
  if (config_.preemption == PreemptionMode::swap && swap_out(round, sequence)) {
    swapping_out_.push_back(victim);
    bump(pool_.counters()["preemptions_swap"], 1);
  } else {
    forget_progress(round, sequence);
    bump(pool_.counters()["preemptions_recompute"], 1);
  }
  single_flight_.withdraw(sequence.flight);
  round.preempted.insert(victim);
  round.plan.outcome.preempted.push_back(victim);
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
  const std::size_t before = leaving_.size();
  append_blocks(leaving_, table.device);
  round.leaving_blocks += leaving_.size() - before;
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

// -- waiting sequences ----------------------------------------------------------------------------

/// Admits in the given order, and nothing after the first that finds no room, as vLLM does. With
/// limits: a domain that has as many blocks as it may keeps nobody else waiting; and where the pool
/// is full, domains are still admitted to what they are sure of.
void BlockManagerState::admit_waiting(Round& round) {
  for (const ScheduledSequence& work : round.plan.work) note_filled(round, work);
  for (const SeqId seq : round.request.waiting) {
    if (round.budget == 0 || round.running >= config_.max_num_seqs) return;
    const Sequence& sequence = sequences_.at(seq);
    const std::size_t blocks = most_blocks(sequence.tokens.size());
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
      case Admitted::waits: ++round.plan.outcome.waits_for_others; break;
      case Admitted::lost: round.plan.outcome.lost.push_back(seq); break;
    }
  }
}

/// From here on this step's admissions find what the sequence fills, but for its guesses.
void BlockManagerState::note_filled(Round& round, const ScheduledSequence& work) {
  if (!config_.prefix_caching) return;
  const Sequence& sequence = sequences_.at(work.seq);
  const std::size_t first = sequence.computed / tokens_per_block_;
  const std::size_t known = sequence.computed + sequence.in_flight - sequence.drafts.size();
  const std::size_t end = known / tokens_per_block_;
  for (std::size_t g = 0; g < groups_.count && first != end; ++g)
    round.filled.add(content_of(sequence), groups_.id(g), sequence.tables[g].device, first, end);
}

/// Rejects a sequence that can never be admitted.
bool BlockManagerState::rejects(Round& round, SeqId seq) {
  const Sequence& sequence = sequences_.at(seq);
  const std::size_t most = pool_.capacity(Tier::device, sequence.domain);
  if (most_blocks(sequence.tokens.size()) <= most) return false;
  const bool is_limited = most < pool_.capacity(Tier::device);
  round.plan.outcome.rejected.push_back(
      {seq,
       Error{
           Errc::never_fits,
           "the request has " + std::to_string(sequence.tokens.size()) + " tokens, " +
               (is_limited ? "its domain's part of the pool" : "the whole pool") + " holds " +
               std::to_string(groups_.longest_sequence(most, config_.max_num_batched_tokens,
                                                       tokens_per_block_, sequence.tokens.size())) +
               (is_limited ? "; shorten it, or change the domains' shares of the blocks "
                             "(shares, min-blocks, max-blocks)"
                           : "; shorten it or give the pool more memory")}});
  return true;
}

BlockManagerState::Admitted BlockManagerState::admit(Round& round, SeqId seq) {
  Sequence& sequence = sequences_.at(seq);
  // What is swapped out goes on where it was.
  const bool is_reset = !sequence.is_swapped_out && sequence.resets != resets_;
  if (is_reset) sequence.resets = resets_;
  if (!is_reset && single_flight_.still_waits(sequence.flight)) return Admitted::waits;
  Start start = start_of(sequence, round.filled);
  const auto total = static_cast<std::uint32_t>(sequence.tokens.size());
  const std::uint32_t tokens = std::min({total - start.computed, round.budget, round.most_of_one});
  const std::vector<BlockId> held = start.found.blocks(Tier::device);
  const auto watermark = static_cast<std::size_t>(
      config_.watermark * static_cast<double>(pool_.memory().tier_layout(Tier::device).blocks));

  // Admit a sequence only if all of its tokens fit. available() is a hint, so if no sequence is
  // running, the engine tries even if it says no.
  std::size_t now = 0;
  for (std::size_t g = 0; g < groups_.count; ++g)
    now += blocks_for(start.computed + tokens) - first_place(groups_.id(g), start.computed);
  now -= held.size();
  const std::size_t needed = std::max(now, blocks_for_all(start, total));
  const bool fits =
      round.running == 0 || (needed + watermark <= pool_.available(Tier::device) &&
                             needed <= pool_.available(Tier::device, sequence.domain));
  if (fits && waits_for_other(round, sequence, start)) {
    cancel(start);
    return Admitted::waits;
  }
  auto fresh = fits ? allocate(round, now, sequence.domain)
                    : Expected<std::vector<BlockId>>(failure(Errc::pool_exhausted, ""));
  // Asked last: from then on the sequence is this engine's, and can be admitted.
  const bool is_lost = fresh && sequence.sink && !sequence.sink->start();
  if (!fresh || is_lost) {
    cancel(start);
    single_flight_.withdraw(sequence.flight);
    if (fresh) give_back(round, *fresh);
    return is_lost ? Admitted::lost : Admitted::no_room;
  }
  if (!std::exchange(sequence.is_counted, true)) count_first_admission(sequence, start);
  const std::uint32_t before = std::exchange(sequence.computed_before, 0);
  bump(pool_.counters()["failover_recomputed_tokens"], before - std::min(before, start.computed));
  fill_tables(round, sequence, start, *fresh, start.computed + tokens);
  round.plan.outcome.admitted.push_back({seq, start.computed});
  schedule(round, seq, sequence, tokens);
  note_filled(round, round.plan.work.back());
  return Admitted::yes;
}

/// How many blocks the sequence needs besides those that it has, until all its tokens are computed
/// (vLLM: scheduler_reserve_full_isl with the cap of admission, which counts what a window has
/// passed as if it would come free again).
std::size_t BlockManagerState::blocks_for_all(const Start& start, std::size_t tokens) const {
  std::size_t needed = 0;
  for (std::size_t g = 0; g < groups_.count; ++g) {
    const auto& [device, host, end] = start.found.groups[g];
    const auto count = [](const std::vector<BlockId>& table) {
      return table.size() - static_cast<std::size_t>(std::ranges::count(table, kNullBlock));
    };
    std::size_t all = most_blocks_of(g, tokens), has = start.found.hit - count(host);
    if (start.is_own_copy) {
      all = std::min(all, blocks_for(tokens) - first_place(groups_.id(g), start.computed));
      has = count(device);
    }
    needed += std::max(all, has) - has;
  }
  return needed;
}

/// The blocks found go back to their places.
void BlockManagerState::cancel(const Start& start) {
  for (const Tier tier : {Tier::device, Tier::host})
    pool_.cancel({.blocks = start.found.blocks(tier), .end = {}});
}

/// Whether the sequence could be admitted and is better off waiting for blocks that another one
/// computes.
bool BlockManagerState::waits_for_other(const Round& round, Sequence& sequence,
                                        const Start& start) {
  if (!config_.single_flight || !config_.prefix_caching || start.is_own_copy ||
      !sequence.reads_cache)
    return false;
  if (start.found.hit >= most_found(sequence)) return false;
  // Who computes a block of this step has claimed what is behind the published ones.
  const auto& first = start.found.groups[0].device;
  std::size_t published = start.found.hit;
  while (published > 0 && first[published - 1] != kNullBlock &&
         !pool_.is_published(first[published - 1]))
    --published;
  const bool waits =
      single_flight_.waits(sequence.flight, claimable(sequence), published, most_found(sequence),
                           patience(sequence.tokens.size() - start.computed));
  if (waits && !std::exchange(sequence.flight.has_waited, true))
    bump(pool_.counters()["single_flight_waits"], 1);
  if (!sequence.flight.claim || !has_more_come(round, sequence, start)) return waits;
  single_flight_.withdraw(sequence.flight);
  return true;
}

/// Seconds that a sequence waits for others rather than computing so many tokens itself: twice what
/// that would take, because machines are busy. Until this engine has computed a prompt it does not
/// know, and waits a few seconds at most.
double BlockManagerState::patience(std::size_t tokens) const {
  constexpr double kUnknownCost = 1e-3, kMostUnknown = 5;
  const double cost = copy_policy_.token();
  return cost != 0 ? 2 * cost * static_cast<double>(tokens)
                   : std::min(2 * kUnknownCost * static_cast<double>(tokens), kMostUnknown);
}

/// Whether more is found now. Between the lookup and the claim, the request that had the claim may
/// have published its blocks and withdrawn it.
bool BlockManagerState::has_more_come(const Round& round, const Sequence& sequence,
                                      const Start& start) {
  const Start now = start_of(sequence, round.filled);
  cancel(now);
  return now.found.hit > start.found.hit;
}

/// Gives the sequence what was found of it, and fresh blocks in all other places up to `tokens`
/// tokens. What is in host blocks is copied in.
void BlockManagerState::fill_tables(Round& round, Sequence& sequence, Start& start,
                                    std::span<const BlockId> fresh, std::size_t tokens) {
  const std::size_t end = blocks_for(tokens);
  for (std::size_t g = 0; g < groups_.count; ++g) {
    const GroupId group = groups_.id(g);
    Table& table = sequence.tables[g];
    auto& found = start.found.groups[g];
    const std::size_t first = first_place(group, start.computed);
    const std::vector<BlockId>& source = start.is_own_copy ? table.host : found.host;
    table.device = std::move(found.device);
    table.device.resize(end, kNullBlock);
    for (std::size_t i = first; i < end; ++i) {
      if (table.device[i] != kNullBlock) continue;
      table.device[i] = fresh.front();
      fresh = fresh.subspan(1);
      if (i < source.size())
        round.plan.swap_in.push_back({index_of(source[i]), index_of(table.device[i])});
    }
    table.published = found.end;
    announce(sequence, group, std::max<std::size_t>(first, found.end.depth));
    append_blocks(leaving_, table.host);
    table.host.clear();
  }
  const std::vector<BlockId> promoted = start.found.blocks(Tier::host);
  leaving_.insert(leaving_.end(), promoted.begin(), promoted.end());
  bump(pool_.counters()["promoted_blocks"], promoted.size());
  sequence.is_swapped_out = false;
  sequence.computed = start.computed;
}

/// Counts a lookup in the statistics. Called only when a request is first admitted: not at each
/// attempt, because a request that does not fit is looked up in every step, and not after a
/// preemption or a failover, because the request then finds its own blocks.
void BlockManagerState::count_first_admission(const Sequence& sequence, const Start& start) {
  SlotCounters& counters = pool_.counters();
  bump(counters["queried_blocks"], start.looked_up);
  bump(counters["hit_blocks"], start.found.hit);
  bump(counters["host_hit_blocks"], start.found.host_places());
  bump(counters["prompt_tokens"], sequence.tokens.size());
  if (sequence.reads_cache) bump(counters["queried_tokens"], sequence.tokens.size());
  bump(counters["cached_tokens"], start.computed);
  count_origins(start.found);
}

/// Counts the tokens found by who had computed them. A place that no group keeps any more counts
/// with the next one that some group does.
void BlockManagerState::count_origins(const SequenceStart& found) {
  enum Origin : std::size_t { own, sibling, host };
  std::array<std::size_t, 3> places{};
  Origin origin = own;
  for (std::size_t i = found.hit; i-- > 0;) {
    std::size_t on_device = 0, ours = 0, on_host = 0;
    for (const SequenceStart::OfGroup& group : found.groups) {
      on_host += group.host[i] != kNullBlock;
      if (group.device[i] == kNullBlock) continue;
      ++on_device;
      ours += pool_.is_own(group.device[i]) || !pool_.is_published(group.device[i]);
    }
    if (on_host != 0)
      origin = host;
    else if (on_device != 0)
      origin = ours == on_device ? own : sibling;
    ++places[origin];
  }
  SlotCounters& counters = pool_.counters();
  bump(counters["hit_tokens_own"], places[own] * tokens_per_block_);
  bump(counters["hit_tokens_sibling"], places[sibling] * tokens_per_block_);
  bump(counters["hit_tokens_host"], places[host] * tokens_per_block_);
}

/// Finds the part of the sequence that need not be computed. The last token must be computed,
/// because its logits are needed; since hits are whole blocks, its whole block is computed. A
/// sequence that is swapped out goes on from its copies, if the device tier has less.
BlockManagerState::Start BlockManagerState::start_of(const Sequence& sequence,
                                                     const StepBlocks& filled) {
  const std::size_t most =
      config_.prefix_caching && sequence.reads_cache ? most_found(sequence) : 0;
  const bool may_promote =
      !sequence.is_swapped_out && pool_.capacity(Tier::host) != 0 && copy_policy_.promotion_pays();
  Start start{.found = find_start(pool_, content_of(sequence), most, may_promote, filled),
              .looked_up = most};
  start.computed = static_cast<std::uint32_t>(start.found.hit * tokens_per_block_);
  if (!sequence.is_swapped_out || sequence.computed <= start.computed) return start;

  start.is_own_copy = true;
  start.computed = sequence.computed;
  // Of what was found, the tokens behind the copies read less.
  PrefixHit passed{};
  for (std::size_t g = 0; g < groups_.count; ++g) {
    auto& [device, host, end] = start.found.groups[g];
    const std::size_t first = std::min(first_place(groups_.id(g), start.computed), device.size());
    append_blocks(passed.blocks, std::span(device).first(first));
    std::fill_n(device.begin(), first, kNullBlock);
    if (first != 0) end = root_of(sequence, groups_.id(g), first);
  }
  pool_.cancel(passed);
  return start;
}

void BlockManagerState::schedule(Round& round, SeqId seq, Sequence& sequence,
                                 std::uint32_t tokens) {
  ScheduledSequence work;
  work.seq = seq;
  work.start = sequence.computed;
  const std::uint32_t known =
      std::min(tokens, static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.computed);
  const auto first = sequence.tokens.begin() + sequence.computed;
  work.tokens.assign(first, first + known);
  work.drafts = tokens - known;
  sequence.drafts.resize(work.drafts);
  work.tokens.insert(work.tokens.end(), sequence.drafts.begin(), sequence.drafts.end());
  const std::size_t blocks = blocks_for(sequence.computed + tokens);
  for (const Table& table : sequence.tables)
    work.blocks.insert(work.blocks.end(), table.device.begin(),
                       table.device.begin() + std::ptrdiff_t(blocks));
  work.samples = sequence.computed + known == sequence.tokens.size();
  work.sampling = sequence.sampling;
  work.logprobs = sequence.logprobs;
  work.adapter = sequence.adapter;
  if (work.samples && sequence.logits) {
    work.logits = sequence.logits;
    work.answer.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  }
  score(sequence, work);
  round.plan.work.push_back(std::move(work));
  round.budget -= tokens;
  sequence.in_flight = tokens;
}

/// Has the step score the tokens of the prompt that follow its own and have no score yet.
void BlockManagerState::score(const Sequence& sequence, ScheduledSequence& work) {
  const std::size_t first = std::max(work.start + 1, sequence.scored);
  const std::size_t end =
      std::min<std::size_t>(work.start + work.tokens.size() + 1, sequence.to_score);
  if (first >= end) return;
  work.scored.assign(sequence.tokens.begin() + std::ptrdiff_t(first),
                     sequence.tokens.begin() + std::ptrdiff_t(end));
  work.first_scored_row = static_cast<std::uint32_t>(first - 1 - work.start);
  work.prompt_logprobs = sequence.prompt_logprobs;
}

std::uint32_t BlockManagerState::index_of(BlockId block) const {
  return block.value - pool_.memory().tier_layout(pool_.memory().tier_of(block)).first_block;
}

}  // namespace kvhive
