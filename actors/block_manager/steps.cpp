// Steps: how they are planned, when the last is done or while it is computed, and what their ends
// change.

#include <algorithm>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/block_manager/round.hpp"
#include "base/check.hpp"

namespace kvhive {
namespace {

/// In seconds. What a step ahead saves is a small part of a longer step, and whoever comes
/// meanwhile waits for both.
constexpr double kLongStep = 0.01;

/// How many blocks are kept for forks: for as many sequences as may run, if that is a small part of
/// the pool; for one always.
std::size_t most_kept(const BlockPool& pool, const BlockManagerConfig& config) {
  constexpr std::size_t kSmallPart = 32;
  const std::size_t groups = pool.groups().count;
  return std::max(groups,
                  std::min(config.max_num_seqs * groups, pool.capacity(Tier::device) / kSmallPart));
}

/// Where the blocks of windows are kept at few places only, nobody can go on from others: what is
/// claimed ends at such a place.
SingleFlight::Stretch stretch_for(const BlockManagerConfig& config, const CacheGroups& groups,
                                  std::size_t block_size) {
  const bool has_windows = std::ranges::any_of(groups.all(), [](const CacheGroup& group) {
    return group.kind == CacheKind::sliding_window;
  });
  if (!has_windows || !config.retention.interval) return config.stretch;
  constexpr std::size_t kAll = std::size_t{1} << 32;  // blocks: more than any prompt has
  const std::size_t unit = *config.retention.interval / block_size;
  return {.unit = unit == 0 ? kAll : unit, .least = config.stretch.least};
}

}  // namespace

BlockManagerState::BlockManagerState(BlockPool& pool, const BlockManagerConfig& config)
    : pool_(pool),
      groups_(pool.groups()),
      hasher_(pool.hasher()),
      config_(config),
      tokens_per_block_(pool.tokens_per_block()),
      copy_policy_(tokens_per_block_),
      single_flight_(pool.claims(), config.clock,
                     stretch_for(config, pool.groups(), pool.tokens_per_block())),
      tails_(pool, most_kept(pool, config), config.clock) {}

BlockManagerState::Round BlockManagerState::round_of(const StepRequest& request) const {
  Round round{.request = request,
              .plan = {},
              .budget = request.token_budget,
              .most_of_one = most_tokens(request),
              .preempted = {},
              .evicted = {},
              .filled = StepBlocks(groups_, tokens_per_block_)};
  round.plan.step = request.step;
  return round;
}

StepPlan BlockManagerState::plan(const StepRequest& request) {
  while (!steps_.empty()) finish_step();
  apply_request(request);
  resets_ = pool_.memory().resets();

  Round round = round_of(request);
  serve_running(round);
  // Not after a preemption, as vLLM does; but one that a domain's maximum has caused concerns
  // nobody else.
  const bool concerns_all = round.lack.of_all || !round.plan.swap_out.empty();
  if (round.preempted.empty() || !concerns_all) admit_waiting(round);
  config_.tell_lack(round.lack);
  round.plan.outcome.at_maximum.assign(round.at_maximum.begin(), round.at_maximum.end());
  demote(round);
  count_queues(round);
  going_on_.clear();
  if (config_.async_scheduling && last_computing_ < kLongStep && all_go_on(round))
    for (const ScheduledSequence& work : round.plan.work) going_on_.push_back(work.seq);
  next_step_ = request.step + 1;
  token_budget_ = request.token_budget;
  return begin(round);
}

StepPlan BlockManagerState::begin(Round& round) {
  for (const auto& part : round.under_way.work) round.plan.outcome.scheduled_tokens += part.tokens;
  round.under_way.copied_blocks = round.plan.copied_blocks();
  round.under_way.tokens = round.plan.outcome.scheduled_tokens;
  steps_.push_back(std::move(round.under_way));
  return std::move(round.plan);
}

void BlockManagerState::count_queues(const Round& round) const {
  SlotCounters& counters = pool_.counters();
  counters["running"].store(round.running, std::memory_order_relaxed);
  counters["waiting"].store(round.request.waiting_in_all -
                                static_cast<std::uint32_t>(round.plan.outcome.admitted.size() +
                                                           round.plan.outcome.lost.size()) +
                                static_cast<std::uint32_t>(round.preempted.size()),
                            std::memory_order_relaxed);
}

// -- a step ahead ---------------------------------------------------------------------------------

/// Whether the step has all that runs, and nothing else is left to decide: what waits, is scored or
/// was preempted may be scheduled otherwise once the step is done.
bool BlockManagerState::all_go_on(const Round& round) const {
  const StepOutcome& outcome = round.plan.outcome;
  const bool waits = round.request.waiting.size() !=
                     outcome.admitted.size() + outcome.rejected.size() + outcome.lost.size();
  if (waits || !round.preempted.empty()) return false;
  return round.plan.work.size() == round.running &&
         std::ranges::none_of(round.under_way.work, [](const StepUnderWay::Part& part) {
           return part.sequence->scored < part.sequence->to_score;
         });
}

std::optional<StepPlan> BlockManagerState::plan_ahead() {
  if (going_on_.empty()) return std::nullopt;
  std::erase_if(going_on_, [&](SeqId seq) { return next_tokens(sequences_.at(seq)) == 0; });
  StepRequest request;
  request.step = next_step_;
  request.running = going_on_;
  request.token_budget = token_budget_;
  Round round = round_of(request);
  serve_running(round);
  // Who found no room gets it from plan(), which may preempt.
  if (round.plan.work.size() != going_on_.size()) going_on_.clear();
  if (round.plan.work.empty()) return std::nullopt;
  demote(round);
  ++next_step_;
  bump(pool_.counters()["steps_ahead"], 1);
  return begin(round);
}

void BlockManagerState::join(const StepRequest& request) {
  KV_CHECK(request.step + 1 == next_step_, request.step, next_step_);
  apply_request(request);
  if (!request.waiting.empty() || last_computing_ >= kLongStep) going_on_.clear();
  Round round = round_of(request);
  round.running = static_cast<std::uint32_t>(request.running.size());
  count_queues(round);
}

/// The tokens of the sequence that a step may compute next. If all that are known are under way,
/// that is the one which they give, unless nothing follows it.
std::uint32_t BlockManagerState::next_tokens(const Sequence& sequence) const {
  const auto all = static_cast<std::uint32_t>(sequence.tokens.size());
  const auto known = all - sequence.begun();
  if (known != 0 || sequence.in_flight == 0)
    return known + static_cast<std::uint32_t>(sequence.drafts.size());
  return all + 1 < sequence.most_tokens ? 1 : 0;
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
  if (steps_.empty()) return;
  const StepUnderWay step = std::move(steps_.front());
  steps_.pop_front();
  last_computing_ = done.times.computing;
  copy_policy_.learn(step.copied_blocks, step.tokens, step.work.size(), done.times);
  if (step.tokens != 0) pool_.counters().observe("iteration_tokens_total", step.tokens);
  // Before the publications below, so that content that was demoted and computed again meanwhile
  // gets its old uid.
  pool_.finish_demotion(step.demotions);
  for (const auto& [seq, sequence, tokens] : step.work) compute_done(*sequence, tokens);
  // Behind what was known when the step began, as in vLLM: of equal blocks the first is found.
  append(step, done.sampled);
  for (const PromptScores& scores : done.scored)
    sequences_.at(scores.seq).scored += static_cast<std::uint32_t>(scores.tokens.size());
  for (const auto& [seq, sequence, tokens] : step.work) keep_right_drafts(*sequence);
  // The host copies of a swapped-out sequence are published, so that all engines can find them.
  for (const SeqId seq : step.swapping_out) {
    Sequence& sequence = sequences_.at(seq);
    for (Table& table : sequence.tables) publish(sequence, table.host_published, table.host);
  }
  for (const auto& [seq, sequence, tokens] : step.work)
    if (sequence->has_ended && sequence->in_flight == 0) forget(seq);
  pool_.release(step.leaving);
}

/// What else the work refers to, as the rows of a prompt, lives no longer than the step.
void BlockManagerState::reuse(std::vector<ScheduledSequence> spent) {
  for (ScheduledSequence& work : spent)
    spent_.push_back({std::move(work.tokens), std::move(work.blocks)});
}

void BlockManagerState::compute_done(Sequence& sequence, std::uint32_t tokens) {
  sequence.in_flight -= tokens;
  if (sequence.has_ended) return bump(pool_.counters()["ended_rows"], tokens);
  sequence.computed += tokens;
  sequence.computed -= static_cast<std::uint32_t>(sequence.drafts.size());
  std::optional<Claim> passed;
  if (config_.single_flight && config_.prefix_caching)
    passed = single_flight_.advance(sequence.flight, claimable(sequence),
                                    sequence.computed / tokens_per_block_, most_found(sequence));
  for (Table& table : sequence.tables) publish(sequence, table.published, table.device);
  single_flight_.withdraw(passed);
}

/// \param sampled  mostly in the order of the step's work; of one sequence perhaps several
void BlockManagerState::append(const StepUnderWay& step, std::span<const SampledToken> sampled) {
  std::uint64_t generated = 0;
  auto part = step.work.begin();
  for (const SampledToken& each : sampled) {
    const auto found = std::find_if(part, step.work.end(),
                                    [&](const auto& behind) { return behind.seq == each.seq; });
    if (found != step.work.end()) part = found;
    Sequence& sequence = found != step.work.end() ? *found->sequence : sequences_.at(each.seq);
    if (sequence.has_ended) continue;
    ++generated;
    sequence.tokens.push_back(each.token.token);
    sequence.names.extend(hasher_, sequence.tokens);
  }
  bump(pool_.counters()["generated_tokens"], generated);
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
    if (block.front() != kNullBlock && !pool_.is_published(block.front()) &&
        is_cached(sequence, published.group, published.depth))
      publish_run(sequence, published, block);
  }
}

bool BlockManagerState::is_cached(const Sequence& sequence, GroupId group,
                                  std::size_t block) const {
  return is_retained(config_.retention, groups_[group], block,
                     {sequence.prompt_tokens, sequence.junction}, tokens_per_block_);
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
/// those blocks whose tokens are all known, whether or not they will be kept.
void BlockManagerState::announce(const Sequence& sequence, GroupId group, std::size_t from) {
  const std::span<const BlockId> table = sequence.tables[groups_.place(group)].device;
  const std::size_t to = std::min(table.size(), sequence.names.blocks());
  if (!config_.prefix_caching || from >= to) return;
  pool_.announce(table.subspan(from, to - from),
                 sequence.names.names(group).subspan(from, to - from));
}

void BlockManagerState::apply_request(const StepRequest& request) {
  KV_CHECK(request.drafts.empty() || !config_.async_scheduling);
  for (const NewSequence& added : request.added) {
    Sequence sequence = new_sequence(added.domain, added.tokens, added.salt, added.embedded);
    sequence.sampling = added.sampling;
    sequence.logprobs = added.logprobs;
    sequence.adapter = added.adapter;
    sequence.sink = added.sink;
    sequence.is_counted = added.is_counted;
    sequence.computed_before = added.computed_before;
    sequence.reads_cache = added.reads_cache;
    sequence.to_score = added.scored_tokens;
    sequence.prompt_logprobs = added.prompt_logprobs;
    sequence.logits = added.logits;
    sequence.prompt_tokens = added.prompt_tokens;
    sequence.most_tokens = added.most_tokens;
    sequence.will_be_forked = added.will_be_forked;
    sequences_.emplace(added.seq, std::move(sequence));
  }
  look_after_tails();
  for (const Drafts& drafts : request.drafts) sequences_.at(drafts.seq).drafts = drafts.tokens;
  for (const SeqId seq : request.ended) end(seq);
}

BlockManagerState::Sequence BlockManagerState::new_sequence(
    DomainId domain, std::vector<TokenId> tokens, const ExtraKey& salt,
    std::shared_ptr<const EmbeddedPrompt> embedded) const {
  Sequence sequence{.domain = domain,
                    .tokens = std::move(tokens),
                    .sampling = {},
                    .names = SequenceNames(groups_, domain, tokens_per_block_, salt, embedded),
                    .tables = std::vector<Table>(groups_.count),
                    .sink = {},
                    .embedded = std::move(embedded)};
  sequence.names.extend(hasher_, sequence.tokens);
  return sequence;
}

void BlockManagerState::end(SeqId seq) {
  const auto found = sequences_.find(seq);
  KV_CHECK(found != sequences_.end(), seq.value);
  single_flight_.withdraw(found->second.flight);
  std::erase(going_on_, seq);
  found->second.has_ended = true;
  if (found->second.in_flight == 0) forget(seq);
}

void BlockManagerState::forget(SeqId seq) {
  const auto found = sequences_.find(seq);
  keep_tail(found->second);
  for (const Table& table : found->second.tables)
    for (const auto* blocks : {&table.device, &table.host}) {
      std::vector<BlockId> held;
      append_blocks(held, *blocks);
      pool_.release(held);
    }
  running_order_.forget();
  sequences_.erase(found);
}

/// Keeps the block that the sequence has filled in part, if others are to go on from there.
void BlockManagerState::keep_tail(Sequence& sequence) {
  if (!sequence.will_be_forked || !config_.prefix_caching || sequence.is_swapped_out ||
      sequence.embedded || whose_tails_help(config_.others_lack())(sequence.domain))
    return;
  const std::size_t computed = sequence.computed;
  const std::size_t full = computed / tokens_per_block_, first = full * tokens_per_block_;
  const bool has_all = std::ranges::all_of(sequence.tables, [&](const Table& table) {
    return table.device.size() > full && table.device[full] != kNullBlock;
  });
  if (first == computed || !has_all) return;
  Prefix parent = root_of(sequence, groups_.id(0), full);
  if (full != 0 && groups_.is_chained(parent.group)) parent = sequence.tables[0].published;
  if (parent.depth != full) return;
  std::vector<BlockId> blocks;
  for (Table& table : sequence.tables)
    blocks.push_back(std::exchange(table.device[full], kNullBlock));
  tails_.keep({parent, sequence.names.before(full)},
              std::span(sequence.tokens).subspan(first, computed - first), std::move(blocks));
}

void BlockManagerState::schedule(Round& round, SeqId seq, Sequence& sequence,
                                 std::uint32_t tokens) {
  ScheduledSequence& work = round.plan.work.emplace_back();
  if (!spent_.empty()) {
    work.tokens.swap(spent_.back().tokens);
    work.blocks.swap(spent_.back().blocks);
    spent_.pop_back();
  }
  work.seq = seq;
  work.start = sequence.begun();
  const std::uint32_t known =
      std::min(tokens, static_cast<std::uint32_t>(sequence.tokens.size()) - work.start);
  const auto first = sequence.tokens.begin() + work.start;
  work.tokens.assign(first, first + known);
  work.is_to_come = known == 0;
  if (work.is_to_come) work.tokens.push_back(-1);
  work.drafts = tokens - static_cast<std::uint32_t>(work.tokens.size());
  sequence.drafts.resize(work.drafts);
  work.tokens.insert(work.tokens.end(), sequence.drafts.begin(), sequence.drafts.end());
  const auto blocks = static_cast<std::ptrdiff_t>(blocks_for(work.start + tokens));
  work.blocks.resize(groups_.count * std::size_t(blocks));  // mostly as long as it was
  auto to = work.blocks.begin();
  for (std::size_t g = 0; g < groups_.count; ++g, to += blocks) {
    const auto table = sequence.tables[g].device.begin();
    // A step that is under way may still read some of those that it does not.
    const auto passed =
        std::min(static_cast<std::ptrdiff_t>(first_place(groups_.id(g), work.start)), blocks);
    std::fill_n(to, passed, kNullBlock);
    std::copy(table + passed, table + blocks, to + passed);
  }
  work.samples = work.start + known == sequence.tokens.size();
  work.sampling = sequence.sampling;
  work.logprobs = sequence.logprobs;
  work.adapter = sequence.adapter;
  if (work.samples && sequence.logits) {
    work.logits = sequence.logits;
    work.answer.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  }
  if (sequence.embedded && work.start < sequence.embedded->rows())
    work.embedded = sequence.embedded;
  score(sequence, work);
  round.under_way.work.push_back({seq, &sequence, tokens});
  round.budget -= tokens;
  sequence.in_flight += tokens;
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
