// What waits: what of it is there already, and whether there is room for the rest.

#include <algorithm>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/block_manager/round.hpp"
#include "base/check.hpp"

namespace kvhive {

/// Admits in the given order, and nothing after the first that finds no room, as vLLM does. With
/// limits: a domain that has as many blocks as it may keeps nobody else waiting; and where the pool
/// is full, domains are still admitted to what they are sure of.
void BlockManagerState::admit_waiting(Round& round) {
  if (round.request.waiting.empty()) return;
  for (const auto& [seq, sequence, tokens] : round.under_way.work) note_filled(round, *sequence);
  for (const SeqId seq : round.request.waiting) {
    if (round.budget == 0 || round.running >= config_.max_num_seqs) return;
    const Sequence& sequence = sequences_.at(seq);
    const std::size_t blocks = most_blocks(sequence.tokens.size());
    if (round.at_maximum.contains(sequence.domain)) continue;
    if (round.lack.of_all && pool_.lanes().count() == 1) return;
    if (round.lack.of_all && !pool_.lanes().is_within_minimum(sequence.domain, blocks)) continue;
    if (auto error = never_fits(sequence)) {
      round.plan.outcome.rejected.push_back({seq, std::move(*error)});
      continue;
    }
    switch (admit(round, seq)) {
      case Admitted::yes: ++round.running; break;
      case Admitted::no_room:
        round.lack.add(pool_.lanes().of(sequence.domain));
        if (pool_.lanes().is_at_maximum(sequence.domain, blocks))
          round.at_maximum.insert(sequence.domain);
        else
          round.lack.of_all = true;
        break;
      case Admitted::waits: ++round.plan.outcome.waits_for_others; break;
      case Admitted::lost: round.plan.outcome.lost.push_back(seq); break;
    }
  }
}

/// From here on this step's admissions find what the sequence fills, but for its guesses.
void BlockManagerState::note_filled(Round& round, const Sequence& sequence) {
  if (!config_.prefix_caching) return;
  const std::size_t first = sequence.computed / tokens_per_block_;
  const std::size_t known = sequence.computed + sequence.in_flight - sequence.drafts.size();
  const std::size_t end = known / tokens_per_block_;
  for (std::size_t g = 0; g < groups_.count; ++g)
    for (std::size_t i = first; i < end; ++i)
      if (const GroupId group = groups_.id(g); is_cached(sequence, group, i))
        round.filled.add(content_of(sequence), group, sequence.tables[g].device, i, i + 1);
}

/// Why the sequence can never be admitted; nothing if it can.
std::optional<Error> BlockManagerState::never_fits(const Sequence& sequence) const {
  const std::size_t most = pool_.capacity(Tier::device, sequence.domain);
  if (most_blocks(sequence.tokens.size()) <= most) return std::nullopt;
  const bool is_limited = most < pool_.capacity(Tier::device);
  return Error{
      Errc::never_fits,
      "the request has " + std::to_string(sequence.tokens.size()) + " tokens, " +
          (is_limited ? "its domain's part of the pool" : "the whole pool") + " holds " +
          std::to_string(groups_.longest_sequence(most, config_.max_num_batched_tokens,
                                                  tokens_per_block_, sequence.tokens.size())) +
          (is_limited ? "; shorten it, or change the domains' shares of the blocks "
                        "(shares, min-blocks, max-blocks)"
                      : "; shorten it or give the pool more memory")};
}

BlockManagerState::Admitted BlockManagerState::admit(Round& round, SeqId seq) {
  Sequence& sequence = sequences_.at(seq);
  // What is swapped out goes on where it was.
  const bool is_reset = !sequence.is_swapped_out && sequence.resets != resets_;
  if (is_reset) sequence.resets = resets_;
  if (!is_reset && single_flight_.still_waits(sequence.flight)) return Admitted::waits;
  Start start = start_of(sequence, round.filled);
  const Need need = need_of(sequence, start, std::min(round.budget, round.most_of_one));

  // available() is a hint, so if no sequence is running, the engine tries even if it says no.
  const bool fits = round.running == 0 || finds_room(need, sequence.domain, false);
  if (fits && waits_for_other(round, sequence, start)) {
    cancel(start);
    return Admitted::waits;
  }
  auto fresh = fits ? allocate(round, need.now, sequence.domain)
                    : Expected<std::vector<BlockId>>(failure(Errc::pool_exhausted, ""));
  // Asked last: from then on the sequence is this engine's, and can be admitted.
  const bool is_lost = fresh && sequence.sink && !sequence.sink->start();
  if (!fresh || is_lost) {
    cancel(start);
    single_flight_.withdraw(sequence.flight);
    if (fresh) give_back(round, *fresh);
    return is_lost ? Admitted::lost : Admitted::no_room;
  }
  sequence.junction = start.junction;
  if (!std::exchange(sequence.is_counted, true)) count_first_admission(sequence, start);
  const std::uint32_t before = std::exchange(sequence.computed_before, 0);
  bump(pool_.counters()["failover_recomputed_tokens"], before - std::min(before, start.computed));
  fill_tables(round, sequence, start, *fresh, start.computed + need.tokens);
  round.plan.outcome.admitted.push_back({seq, start.computed});
  schedule(round, seq, sequence, need.tokens);
  note_filled(round, sequence);
  return Admitted::yes;
}

/// \param most_tokens  that its first step may compute
BlockManagerState::Need BlockManagerState::need_of(const Sequence& sequence, const Start& start,
                                                   std::size_t most_tokens) const {
  const std::size_t total = sequence.tokens.size();
  const std::size_t tokens = std::min(total - start.computed, most_tokens);
  std::size_t now = 0;
  for (std::size_t g = 0; g < groups_.count; ++g)
    now += blocks_for(start.computed + tokens) - first_place(groups_.id(g), start.computed);
  now -= start.found.blocks(Tier::device).size();
  return {static_cast<std::uint32_t>(tokens), now, std::max(now, blocks_for_all(start, total))};
}

/// A sequence is admitted only if all of its tokens fit. Whoever is alone needs to leave nothing.
/// What is kept for forks counts as available: allocate() gives it up.
bool BlockManagerState::finds_room(const Need& need, DomainId domain, bool is_alone) const {
  const auto watermark = static_cast<std::size_t>(
      config_.watermark * static_cast<double>(pool_.memory().tier_layout(Tier::device).blocks));
  const std::size_t kept = tails_.kept(whose_tails_help(need.blocks, domain));
  return need.blocks + (is_alone ? 0 : watermark) <= pool_.available(Tier::device) + kept &&
         need.blocks <= pool_.available(Tier::device, domain) + kept;
}

// -- questions ------------------------------------------------------------------------------------

Answers BlockManagerState::answer(const Questions& questions) {
  Answers answers;
  for (const Question& question : questions.asked)
    answers.given.push_back({question.seq, room_for(question, questions.running)});
  return answers;
}

/// As for an admission of the next step. Blocks that are found stay where they are in the order of
/// their release.
Expected<RoomStatus> BlockManagerState::room_for(const Question& question, std::size_t running) {
  Sequence sequence =
      new_sequence(question.domain, question.tokens, question.salt, question.embedded);
  sequence.reads_cache = question.reads_cache;
  sequence.resets = pool_.memory().resets();
  if (auto error = never_fits(sequence)) return tl::unexpected(std::move(*error));
  const Start start = start_of(sequence, StepBlocks(groups_, tokens_per_block_));
  const Need need = need_of(sequence, start, config_.max_num_batched_tokens);
  const bool fits =
      running < config_.max_num_seqs && finds_room(need, question.domain, running == 0);
  const std::size_t kept = tails_.kept(whose_tails_help(need.blocks, question.domain));
  const std::size_t available = std::min({pool_.available(Tier::device) + kept,
                                          pool_.available(Tier::device, question.domain) + kept,
                                          pool_.capacity(Tier::device, question.domain)});
  cancel(start);
  return RoomStatus{fits ? AllocStatus::ok : AllocStatus::later,
                    static_cast<std::uint32_t>(need.blocks), static_cast<std::uint32_t>(available),
                    start.computed};
}

// -- the parts of an admission --------------------------------------------------------------------

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
  pool_.release(start.tail);
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
    pool_.touch(found.device);
    table.device = std::move(found.device);
    table.device.resize(end, kNullBlock);
    for (std::size_t i = first; i < end; ++i) {
      if (table.device[i] != kNullBlock) continue;
      table.device[i] = fresh.front();
      fresh = fresh.subspan(1);
      if (i < source.size())
        round.plan.swap_in.push_back({index_of(source[i]), index_of(table.device[i])});
    }
    if (!start.tail.empty())
      round.plan.copies.push_back(
          {index_of(start.tail[g]), index_of(table.device[start.found.hit])});
    table.published = found.end;
    announce(sequence, group, std::max<std::size_t>(first, found.end.depth));
    append_blocks(round.under_way.leaving, table.host);
    table.host.clear();
  }
  const std::vector<BlockId> promoted = start.found.blocks(Tier::host);
  append_blocks(round.under_way.leaving, promoted);
  append_blocks(round.under_way.leaving, start.tail);
  bump(pool_.counters()["promoted_blocks"], promoted.size());
  if (!start.tail.empty())
    bump(pool_.counters()["forked_tokens"], start.computed % tokens_per_block_);
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
  if (config_.prefix_caching && sequence.reads_cache)
    bump(counters["queried_tokens"], sequence.tokens.size());
  bump(counters["cached_tokens"], start.computed);
  count_origins(start.found);
  if (!start.tail.empty()) bump(counters["hit_tokens_own"], start.computed % tokens_per_block_);
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
/// because its logits are needed; since hits are whole blocks, its whole block is computed, but for
/// what a fork finds of it. A sequence that is swapped out goes on from its copies, if the device
/// tier has less.
BlockManagerState::Start BlockManagerState::start_of(const Sequence& sequence,
                                                     const StepBlocks& filled) {
  const std::size_t most =
      config_.prefix_caching && sequence.reads_cache ? most_found(sequence) : 0;
  const bool may_promote =
      !sequence.is_swapped_out && pool_.capacity(Tier::host) != 0 && copy_policy_.promotion_pays();
  Start start{.found = find_start(pool_, content_of(sequence), most, may_promote, filled),
              .looked_up = most};
  start.computed = static_cast<std::uint32_t>(start.found.hit * tokens_per_block_);
  if (start.found.hit_of_first > start.found.hit)
    start.junction = start.found.hit_of_first * tokens_per_block_;
  if (!sequence.is_swapped_out || sequence.computed <= start.computed) {
    if (keeps_tails() && config_.prefix_caching && sequence.reads_cache) find_tail(sequence, start);
    return start;
  }
  start.is_own_copy = true;
  go_on_from(sequence, start, sequence.computed);
  return start;
}

/// A tail may have some tokens of the block behind what was found.
void BlockManagerState::find_tail(const Sequence& sequence, Start& start) {
  const std::size_t hit = start.found.hit;
  const std::size_t first = hit * tokens_per_block_;
  const SequenceStart::OfGroup& leading = start.found.groups[0];
  const bool is_chained = groups_.is_chained(groups_.id(0));
  if (sequence.embedded || (is_chained && leading.end.depth != hit)) return;
  const Prefix parent = is_chained ? leading.end : root_of(sequence, groups_.id(0), hit);
  const auto found =
      tails_.find({parent, sequence.names.before(hit)},
                  std::span(sequence.tokens).subspan(first, sequence.tokens.size() - 1 - first));
  if (!found) return;
  start.tail.assign(found->blocks.begin(), found->blocks.end());
  pool_.fork(start.tail);
  go_on_from(sequence, start, static_cast<std::uint32_t>(first + found->tokens));
}

/// The sequence goes on behind more tokens than the blocks that were found have: of these it reads
/// less.
void BlockManagerState::go_on_from(const Sequence& sequence, Start& start, std::uint32_t computed) {
  start.computed = computed;
  PrefixHit passed{};
  for (std::size_t g = 0; g < groups_.count; ++g) {
    auto& [device, host, end] = start.found.groups[g];
    const std::size_t first = std::min(first_place(groups_.id(g), start.computed), device.size());
    for (std::vector<BlockId>* table : {&device, &host}) {
      append_blocks(passed.blocks, std::span(*table).first(first));
      std::fill_n(table->begin(), first, kNullBlock);
    }
    if (first != 0) end = root_of(sequence, groups_.id(g), first);
  }
  pool_.cancel(passed);
}

}  // namespace kvhive
