#pragma once
// What the actors of an engine tell each other, in the order a step sends it. Plain structs with
// ids, tokens and block lists, never tensors. One message per hop per step, whatever the batch
// size:
//
//   port --SubmitBatch, AbortBatch--> scheduler --StepRequest--> block manager
//                                         ^                           | StepPlan
//                                         |                        swapper
//                                         |                           | StepPlan
//                                         '--------StepDone------- executor

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.hpp"
#include "ipc/generation.hpp"
#include "ipc/output_sink.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive {

/// Names a request inside one engine: its channel and its slot there.
struct RequestKey {
  std::uint64_t channel = 0;
  std::uint32_t slot = 0;
  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// port -> scheduler: a request, tokenised and checked.
struct Submission {
  RequestKey key;
  std::vector<TokenId> prompt;
  /// Tokens that an engine generated before it died; generation goes on after them.
  std::vector<TokenId> journal;
  GenerationParams params;
  std::shared_ptr<OutputSink> sink;
  DomainId domain{};  ///< the channel's, as the keeper says
  /// What the first admission found, if an engine that died had admitted the request.
  std::optional<RequestStats> earlier_admission{};
};
struct SubmitBatch {
  std::vector<Submission> submissions;
};

/// port -> scheduler: clients have aborted requests, or are gone.
struct AbortBatch {
  std::vector<RequestKey> requests;
  std::vector<std::uint64_t> channels;  ///< all requests of these channels
};

/// A sequence that the block manager does not know yet.
struct NewSequence {
  SeqId seq;
  std::vector<TokenId> tokens;
  SamplingParams sampling;
  std::uint32_t logprobs = 0;
  DomainId domain{};
  bool is_counted = false;  ///< in the pool's statistics, by an engine that admitted it and died
};

struct AppendedToken {
  SeqId seq;
  TokenId token = 0;
};

/// scheduler -> block manager: what to do, in order of preference. The scheduler decides on the
/// order, the block manager on how much of it fits. Sending step n means that step n-1 is done.
struct StepRequest {
  std::uint64_t step = 0;
  std::vector<NewSequence> added;
  std::vector<AppendedToken> appended;  ///< sampled by the last step
  std::vector<SeqId> ended;             ///< publish what is complete, give everything back
  std::vector<SeqId> running;           ///< serve each with as many tokens as it lacks
  std::vector<SeqId> waiting;           ///< then admit these, if nobody had to be preempted
  /// Sequences to preempt, in this order, if blocks run short.
  std::vector<SeqId> victims;
  std::uint32_t token_budget = 0;
  std::uint32_t waiting_in_all = 0;  ///< requests; more than `waiting` names. For the statistics
};

/// One sequence's share of a step: `tokens` at positions start.. are computed, reading and writing
/// through `blocks`.
struct ScheduledSequence {
  SeqId seq;
  std::uint32_t start = 0;
  std::vector<TokenId> tokens;
  /// Device blocks of positions 0 .. start + tokens.size() - 1.
  std::vector<BlockId> blocks;
  bool samples = false;  ///< these are the sequence's last tokens: sample the next one
  SamplingParams sampling;
  std::uint32_t logprobs = 0;
};

struct Admission {
  SeqId seq;
  std::uint32_t cached_tokens = 0;  ///< need no computing: found in the pool, or swapped in
};
struct Rejection {
  SeqId seq;
  Error error;
};

/// What the block manager decided on a step request.
struct StepOutcome {
  std::vector<Admission> admitted;
  std::vector<SeqId> preempted;  ///< in the order of their preemption; they wait again, in front
  std::vector<Rejection> rejected;
  std::uint32_t scheduled_tokens = 0;
};

/// A block with bytes of another domain: to be zeroed before it is `to`'s (pool/scrub.hpp).
struct DomainChange {
  BlockId block;
  DomainId to;
};

/// Seconds, 0 = not measured. The copy policy learns from them what copies and tokens cost.
struct StepTimes {
  double copying = 0;    ///< between the tiers
  double computing = 0;  ///< in the executor
};

/// block manager -> swapper -> executor. Each copy is made before its destination is read and
/// before its source is overwritten: a block is copied out before it is filled anew, and copied in
/// before it is copied within the device or used by the model. No host block is both written and
/// read: a step that preempts admits no request, and demotions go to blocks that no process holds.
/// So copies in both directions may run at the same time.
struct StepPlan {
  std::uint64_t step = 0;
  /// device -> host: preempted sequences. Their device blocks are not overwritten in this step.
  std::vector<BlockPair> swap_out;
  /// device -> host: evicted content. This step may overwrite the device blocks afterwards.
  std::vector<BlockPair> demotions;
  std::vector<DomainChange> domain_changes;  ///< of the blocks that demotions read
  std::vector<BlockPair> swap_in;            ///< host -> device
  std::vector<BlockPair> copies;             ///< device -> device, copy on write
  std::vector<ScheduledSequence> work;
  StepOutcome outcome;
  StepTimes times;  ///< so far

  /// Blocks copied between the tiers.
  std::size_t copied_blocks() const { return swap_out.size() + demotions.size() + swap_in.size(); }
  bool is_empty() const {
    return work.empty() && copied_blocks() == 0 && domain_changes.empty() && copies.empty();
  }
};

struct SampledToken {
  SeqId seq;
  GeneratedToken token;
};

/// executor -> block manager -> scheduler: the step is done, on the device too.
struct StepDone {
  std::uint64_t step = 0;
  StepOutcome outcome;
  std::vector<SampledToken> sampled;
  StepTimes times;
};

}  // namespace kvhive
