#pragma once
// The messages between the actors of an engine, in the order in which a step sends them. Plain
// structs with ids, tokens and block lists; embeddings go by reference. Per step, each actor sends
// one message to the next, whatever the batch size:
//
//   port --SubmitBatch, AbortBatch--> scheduler --StepRequest--> block manager <--StepDone--.
//                                         ^                        |      | StepPlan         |
//                                         '---------StepDone-------'   swapper               |
//                                                                         | StepPlan         |
//                                                                      executor -------------'
//
// A plan without work for the swapper goes from the block manager to the executor. Beside the
// steps, the scheduler has Questions, and the block manager Answers.

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "config/domains/domain_share.hpp"
#include "hashing/block_hash.hpp"
#include "hashing/embedded_prompt.hpp"
#include "ipc/channel/generation.hpp"
#include "ipc/channel/output_sink.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive {

class HeldMemory;       // ipc/channel/engine_channel.hpp
class LogitsProcessor;  // models/sampling/logits_processor.hpp

/// Names a request inside one engine: its channel, and its slot in the channel.
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
  DomainId domain{};  ///< the channel's domain, which the keeper has decided
  /// The statistics of the first admission, if an engine that died had admitted the request.
  std::optional<RequestStats> earlier_admission{};
  /// What the request counts with in the memory that is held for its channel.
  std::shared_ptr<HeldMemory> held{};
  DomainShare share{};   ///< the domain's
  bool is_new = false;   ///< no engine had it before: it may be refused because too much waits
  RequestTimes times{};  ///< as far as engines have got with it
  /// Of the request's cache salt and adapter (hashing/cache_salt.hpp).
  ExtraKey salt{};
  std::int32_t adapter = -1;  ///< the model's (Transformer::add_adapter), -1 = none
  /// If the prompt is given as embeddings: then `prompt` is kEmbedded throughout.
  std::shared_ptr<const EmbeddedPrompt> embedded{};
  /// The longest prompt for whose scores the client has made room.
  std::size_t most_scored = ~std::size_t{0};
};
struct SubmitBatch {
  std::vector<Submission> submissions;
};

/// port -> scheduler: ends requests, because clients have aborted them or are gone.
struct AbortBatch {
  std::vector<RequestKey> requests;
  std::vector<std::uint64_t> channels;  ///< all requests of these channels are aborted, too
};

/// port -> scheduler: calls `tell` once, in the scheduler's thread, when it has no request.
struct TellWhenEmpty {
  std::function<void()> tell;
};
/// port -> scheduler: an operator has changed a limit, or what a domain may have.
struct NewLimits {
  std::optional<std::uint32_t> max_queued_tokens{};
  std::optional<std::pair<DomainId, DomainShare>> share{};
};

/// Whether a prompt would find room.
struct Question {
  SeqId seq;
  std::vector<TokenId> tokens;
  DomainId domain{};
  ExtraKey salt{};
  bool reads_cache = true;
  std::shared_ptr<const EmbeddedPrompt> embedded{};
};
/// scheduler -> block manager, which answers between two steps, or while one is computed.
struct Questions {
  std::vector<Question> asked;
  std::size_t running = 0;  ///< requests
};
struct Answer {
  SeqId seq;
  Expected<RoomStatus> room;  ///< Errc::never_fits = never
};
/// block manager -> scheduler
struct Answers {
  std::vector<Answer> given;
};

/// A sequence that the block manager does not know yet.
struct NewSequence {
  SeqId seq;
  std::vector<TokenId> tokens;
  SamplingParams sampling;
  std::uint32_t logprobs = 0;
  DomainId domain{};
  /// An engine that died had admitted it and counted it in the statistics.
  bool is_counted = false;
  /// Asked before the sequence is admitted. Null = no other engine can have it.
  std::shared_ptr<OutputSink> sink{};
  ExtraKey salt{};  ///< the first block's extra key: of the request's cache salt and adapter
  std::int32_t adapter = -1;
  /// Of `tokens`, so many had been computed by an engine that died.
  std::uint32_t computed_before = 0;
  /// If its prompt is to be scored (GenerationParams::prompt_logprobs): the prompt's tokens, which
  /// `tokens` begins with, and the K.
  std::uint32_t scored_tokens = 0;
  std::uint32_t prompt_logprobs = 0;
  bool reads_cache = true;  ///< else the whole sequence is computed, after a preemption, too
  /// Null = tokens are chosen from the logits as they are.
  std::shared_ptr<const LogitsProcessor> logits{};
  std::uint32_t prompt_tokens = 0;  ///< the first of `tokens`; what follows is the answer
  /// Of prompt and answer together: with so many the request has ended.
  std::uint32_t most_tokens = ~std::uint32_t{0};
  std::shared_ptr<const EmbeddedPrompt> embedded{};  ///< the first of `tokens`, if not null
  bool will_be_forked = false;                       ///< GenerationParams::will_be_forked
};

/// Guesses at the tokens that follow a sequence's newest one
/// (actors/speculation/prompt_lookup.hpp).
struct Drafts {
  SeqId seq;
  std::vector<TokenId> tokens;
};

/// scheduler -> block manager: what to do in the next step, in order of preference. The scheduler
/// decides the order, the block manager how much of it fits. When the scheduler sends step n, step
/// n-1 is done.
struct StepRequest {
  std::uint64_t step = 0;
  std::vector<NewSequence> added;
  std::vector<SeqId> ended;    ///< release all blocks of these sequences
  std::vector<SeqId> running;  ///< for each, compute the tokens that are not computed yet
  std::vector<Drafts> drafts;  ///< of running ones: compute these, too, as far as there is room
  std::vector<SeqId> waiting;  ///< then admit these, if no sequence had to be preempted
  /// Sequences to preempt, in this order, if there are too few blocks.
  std::vector<SeqId> victims;
  std::uint32_t token_budget = 0;
  /// Number of waiting requests, also those that `waiting` leaves out; for the statistics.
  std::uint32_t waiting_in_all = 0;
};

/// One sequence's part of a step. The model computes `tokens`, which are at positions start, start
/// + 1, ...; it reads and writes their KV in `blocks`.
struct ScheduledSequence {
  SeqId seq;
  std::uint32_t start = 0;
  std::vector<TokenId> tokens;
  /// Device blocks of positions 0 .. start + tokens.size() - 1, for each cache group, one after the
  /// other. The null block where no token of the step reads.
  std::vector<BlockId> blocks;
  bool samples = false;  ///< true = these are the sequence's last tokens, so sample the next one
  /// Its one token is what the step before samples for the sequence: that step was not done when
  /// this one was planned. The executor fills it in.
  bool is_to_come = false;
  SamplingParams sampling;
  std::uint32_t logprobs = 0;
  std::int32_t adapter = -1;  ///< with which it is computed, -1 = none
  std::uint32_t drafts = 0;   ///< so many of the last tokens are guesses (actors/speculation)
  /// Tokens of the prompt to score: the model says in its rows first_scored_row, ... how likely
  /// they are. Each follows its row's token.
  std::vector<TokenId> scored{};
  std::uint32_t first_scored_row = 0;
  std::uint32_t prompt_logprobs = 0;
  /// If it samples and changes the logits before: how, and the answer so far, without guesses.
  std::shared_ptr<const LogitsProcessor> logits{};
  std::vector<TokenId> answer{};
  /// The sequence's first rows, if its prompt is given as embeddings and `tokens` begin in it.
  std::shared_ptr<const EmbeddedPrompt> embedded{};
};

struct Admission {
  SeqId seq;
  /// Tokens that were found in the pool or swapped in, so need not be computed.
  std::uint32_t cached_tokens = 0;
};
struct Rejection {
  SeqId seq;
  Error error;
};

/// What the block manager decided on a step request.
struct StepOutcome {
  std::vector<Admission> admitted;
  /// In the order of their preemption; the scheduler queues them again.
  std::vector<SeqId> preempted;
  std::vector<Rejection> rejected;
  std::vector<SeqId> lost;  ///< other engines have taken these, which waited
  /// Domains of which something found no room, because they have as many blocks as they may.
  std::vector<DomainId> at_maximum;
  std::uint32_t scheduled_tokens = 0;
  /// How many of StepRequest::waiting wait for blocks that others compute.
  std::uint32_t waits_for_others = 0;
  /// Blocks are kept for forks (actors/prefix/tails.hpp): a step is wanted soon, also an empty one.
  bool keeps_tails = false;
};

/// A block with bytes of another domain. The swapper zeroes it and then moves it to domain `to`
/// (pool/scrub.hpp).
struct DomainChange {
  BlockId block;
  DomainId to;
};

/// In seconds; 0 = not measured. The copy policy learns from them what copies and tokens cost.
struct StepTimes {
  double copying = 0;    ///< time of the copies between the tiers
  double computing = 0;  ///< time that the executor took
};

/// block manager -> swapper -> executor: what the step does. Each copy is made before its
/// destination is read and before its source is overwritten: a block is copied out before it is
/// filled again, and copied in before it is copied within the device or used by the model. No step
/// both writes and reads the same host block: a step that swaps out admits no request, and
/// demotions go to host blocks that no process held. So copies in both directions may run at the
/// same time.
struct StepPlan {
  std::uint64_t step = 0;
  /// device -> host: preempted sequences. Their device blocks are not overwritten in this step.
  std::vector<BlockPair> swap_out;
  /// device -> host: evicted content. This step may overwrite the device blocks afterwards.
  std::vector<BlockPair> demotions;
  /// Sources of `demotions` that a request of another domain fills next. They are zeroed, but only
  /// after they have been copied.
  std::vector<DomainChange> domain_changes;
  std::vector<BlockPair> swap_in;  ///< host -> device
  std::vector<BlockPair> copies;   ///< device -> device, copy on write
  std::vector<ScheduledSequence> work;
  StepOutcome outcome;
  StepTimes times;  ///< measured so far: the swapper has set `copying`

  /// Blocks copied between the tiers.
  std::size_t copied_blocks() const { return swap_out.size() + demotions.size() + swap_in.size(); }
  /// Copies within the device are the executor's.
  bool has_work_for_swapper() const { return copied_blocks() != 0 || !domain_changes.empty(); }
  bool moves_blocks() const { return has_work_for_swapper() || !copies.empty(); }
  bool is_empty() const { return work.empty() && !moves_blocks(); }
};

struct SampledToken {
  SeqId seq;
  GeneratedToken token;
};

/// How likely the tokens of a prompt are, from its place `first` on.
struct PromptScores {
  SeqId seq;
  std::uint32_t first = 0;
  std::vector<PromptToken> tokens;
};

/// What a step's computation gives.
struct StepResults {
  /// Of a sequence with drafts perhaps several, in their order.
  std::vector<SampledToken> sampled;
  std::vector<PromptScores> scored{};
};

/// executor -> block manager -> scheduler: the step is done, also on the device.
struct StepDone {
  std::uint64_t step = 0;
  StepOutcome outcome;
  /// The block manager appends the tokens to its sequences, the scheduler to its requests.
  std::vector<SampledToken> sampled;
  StepTimes times;
  std::vector<PromptScores> scored{};
  /// The plan's work. The block manager plans a later step in its memory.
  std::vector<ScheduledSequence> spent{};
};

}  // namespace kvhive
