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

/// A request's name inside one engine: its channel and the slot there.
struct RequestKey {
  std::uint64_t channel = 0;
  std::uint32_t slot = 0;
  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// port -> scheduler: a request, tokenised and checked.
struct Submission {
  RequestKey key;
  std::vector<TokenId> prompt;
  /// Generated before by an engine that died; generation goes on after it.
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

/// port -> scheduler: these clients want no more of these requests.
struct AbortBatch {
  std::vector<RequestKey> requests;
  std::vector<std::uint64_t> channels;  ///< all of their requests
};

/// A sequence the block manager has not heard of yet.
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

/// scheduler -> block manager: what to do, in order of preference. The order is the scheduler's,
/// how far it goes is the block manager's. Sending step n means that step n-1 is done.
struct StepRequest {
  std::uint64_t step = 0;
  std::vector<NewSequence> added;
  std::vector<AppendedToken> appended;  ///< sampled by the last step
  std::vector<SeqId> ended;             ///< publish what is complete, give everything back
  std::vector<SeqId> running;           ///< serve each with as many tokens as it lacks
  std::vector<SeqId> waiting;           ///< then admit these, if nobody had to be preempted
  /// Whom to preempt, first one first, so that one message always suffices.
  std::vector<SeqId> victims;
  std::uint32_t token_budget = 0;
  std::uint32_t waiting_in_all = 0;  ///< for the statistics
};

/// One sequence's share of a step: `tokens` at positions start.. are computed, reading and writing
/// through `blocks`.
struct ScheduledSequence {
  SeqId seq;
  std::uint32_t start = 0;
  std::vector<TokenId> tokens;
  /// Device blocks of positions 0 .. start + tokens.size() - 1.
  std::vector<BlockId> blocks;
  bool samples = false;  ///< the last token is the sequence's last: sample the next one
  SamplingParams sampling;
  std::uint32_t logprobs = 0;
};

struct Admission {
  SeqId seq;
  std::uint32_t cached_tokens = 0;  ///< that need no computing: found in the pool, or swapped in
};
struct Rejection {
  SeqId seq;
  Error error;
};

/// What became of the scheduler's wishes.
struct StepOutcome {
  std::vector<Admission> admitted;
  std::vector<SeqId> preempted;  ///< in the order they were; they wait again, in front
  std::vector<Rejection> rejected;
  std::uint32_t scheduled_tokens = 0;
};

/// A block that another domain has left bytes in (pool/scrub.hpp).
struct HandOver {
  BlockId block;
  DomainId to;
};

/// Seconds, 0 = not taken. What copies and tokens cost is learnt from them.
struct StepTimes {
  double copying = 0;    ///< between the tiers
  double computing = 0;  ///< the executor's part
};

/// block manager -> swapper -> executor. Each copy is made before what it wrote is read and before
/// what it read is overwritten: a block leaves before it is filled anew, and comes in before it is
/// copied within the device or computed with. No host block is both written and read: a step that
/// preempts admits nobody, and demotions go to blocks that nobody holds. So both ways may be under
/// way at once.
struct StepPlan {
  std::uint64_t step = 0;
  /// device -> host: of preempted sequences, whose device blocks stay as they are in this step.
  std::vector<BlockPair> swap_out;
  /// device -> host: of evicted blocks, which this step may fill anew.
  std::vector<BlockPair> demotions;
  std::vector<HandOver> hand_over;  ///< of the blocks these leave
  std::vector<BlockPair> swap_in;   ///< host -> device
  std::vector<BlockPair> copies;    ///< device -> device, copy on write
  std::vector<ScheduledSequence> work;
  StepOutcome outcome;
  StepTimes times;  ///< so far

  /// Between the tiers.
  std::size_t copied_blocks() const { return swap_out.size() + demotions.size() + swap_in.size(); }
  bool is_empty() const {
    return work.empty() && copied_blocks() == 0 && hand_over.empty() && copies.empty();
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
