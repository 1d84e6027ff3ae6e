#pragma once
// Turns the scheduler's step requests into block tables. This is the only part of an engine that
// changes blocks' metadata, with one exception: the swapper changes the domain of the blocks that
// it zeroes. (Port and scheduler write counters of the engine's slot, too.) Plain C++; the actor
// around it is a shell.
//
// Source: vLLM V1 KVCacheManager.allocate_slots and Scheduler.schedule (serve running requests
// first; preempt until they fit; admit waiting requests only if none was preempted; stop at the
// first that does not fit), V0 BlockSpaceManager.swap_out / swap_in.
//
// A block is published only when the step that filled it is done; but those that the same step
// admits find it at once (actors/prefix/step_blocks.hpp). A device block that the step
// copies to the host is also released only then, because another process may take a released block
// at once.
//
// A sequence has a block table in each cache group. In a group that is not of full attention, its
// blocks are released when no token to come reads them; the null block takes their places.
//
// Content that an allocation evicts is copied to the host tier by the same step, if copying costs
// less than computing it again. It is found there from the next step on. This changes neither which
// requests are preempted nor which are admitted.
//
// A sequence that waits for another one's blocks (single flight) keeps its place in the queue, and
// those behind it are admitted.
//
// What an ended sequence computed of its last block is copied for those that fork it
// (actors/prefix/tails.hpp).

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/block_manager/copy_policy.hpp"
#include "actors/messages.hpp"
#include "actors/prefix/sequence_start.hpp"
#include "actors/prefix/single_flight.hpp"
#include "actors/prefix/tails.hpp"
#include "actors/step_order.hpp"
#include "base/stop_watch.hpp"
#include "config/choices.hpp"
#include "config/window_retention.hpp"
#include "ipc/channel/board.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

struct BlockManagerConfig {
  bool prefix_caching = true;
  WindowRetention retention{};
  PreemptionMode preemption = PreemptionMode::recompute;
  double watermark = 0;  ///< share of the device blocks that an admission must leave available
  std::uint32_t max_num_seqs = 128;
  /// The most tokens of a step. A sequence in a group with a window never holds more blocks than it
  /// needs for the window and a step.
  std::uint32_t max_num_batched_tokens = 2048;
  /// The most tokens of one request in a step, unless it is the only one; 0 = no limit.
  std::uint32_t long_prefill_token_threshold = 0;
  /// Whether a request waits for blocks that another one, here or in another engine, is computing
  /// (actors/prefix/single_flight.hpp). vLLM has no other engine, and finds such blocks in the same
  /// step.
  bool single_flight = false;
  bool async_scheduling = false;  ///< plan_ahead() plans steps; then no request has guesses
  SingleFlight::Clock clock = monotonic_ns;
  /// Tells the host's other engines what waits here for blocks (ipc/channel/board.hpp).
  std::function<void(const Lack&)> tell_lack = [](const Lack&) {};
  /// What waits for blocks at other engines.
  std::function<Lack()> others_lack = [] { return Lack{}; };
  SingleFlight::Stretch stretch{};
};

class BlockManagerState {
 public:
  BlockManagerState(BlockPool& pool, const BlockManagerConfig& config);

  /// Plans a step. Called when no step is under way. `request` also carries the results of the
  /// step before.
  StepPlan plan(const StepRequest& request);

  /// Plans the step behind the newest one, which may be under way: all its sequences go on that do
  /// not end with it for certain. Only while that is all there is to decide (nothing waits, is
  /// preempted or scored) and steps are short. Nothing = the next step is for plan(). At most two
  /// steps are under way.
  std::optional<StepPlan> plan_ahead();

  /// The request for the step that plan_ahead() has planned already. Sequences that have ended keep
  /// their blocks until no step that is under way writes them; new ones wait for plan().
  void join(const StepRequest& request);

  /// Called when the step that has been under way the longest is done: counts its tokens, publishes
  /// the blocks that it filled, and releases the blocks that its copies read. The caller calls it
  /// before any client sees the step's tokens, so that all engines find the blocks of a prompt as
  /// soon as its answer has begun. plan() calls it if it was not called.
  void finish_step(const StepDone& done = {});
  /// The work of a plan that is done: plans to come are made in its memory. With hundreds of
  /// sequences, taking it anew for each and freeing it in the executor's thread was a quarter of a
  /// step's time outside the executor.
  void reuse(std::vector<ScheduledSequence> spent);

  /// Whether sequences would find room, if nothing waited. Changes nothing, and may be called at
  /// any time.
  Answers answer(const Questions& questions);

  /// Whether blocks are kept for forks, which a later step releases.
  bool keeps_tails() const { return tails_.kept() != 0; }

  CopyPolicy& copy_policy() { return copy_policy_; }

 private:
  /// A sequence's blocks in one group, by their place in the sequence; the null block in places
  /// that the group does not keep.
  struct Table {
    std::vector<BlockId> device;
    std::vector<BlockId> host;  ///< while swapped out: copies of the blocks with computed tokens
    Prefix published;           ///< the part of `device` that is published
    Prefix host_published;      ///< the part of `host` that is published
  };
  struct Sequence {
    DomainId domain;
    std::vector<TokenId> tokens;
    SamplingParams sampling;
    std::uint32_t logprobs = 0;
    std::int32_t adapter = -1;
    SequenceNames names;          ///< of its full blocks
    std::vector<Table> tables;    ///< by group
    Resets resets{};              ///< of the prefix cache, when the sequence was looked up
    std::uint32_t computed = 0;   ///< tokens whose KV is in device tables, or host if swapped out
    std::uint32_t in_flight = 0;  ///< tokens behind, in steps under way, drafts included
    /// Guesses at what follows `tokens`. They get slots, but are never published as guesses.
    std::vector<TokenId> drafts{};
    bool is_swapped_out = false;
    bool is_counted = false;  ///< the pool's statistics have counted its first admission
    /// Of its tokens, so many had been computed by an engine that died; 0 once that is counted.
    std::uint32_t computed_before = 0;
    SingleFlight::Ticket flight{};
    std::shared_ptr<OutputSink> sink;
    bool reads_cache = true;
    /// Of its first tokens, so many are to be scored, and so many have been. The very first has
    /// nothing to be scored by.
    std::uint32_t to_score = 0, scored = 1;
    std::uint32_t prompt_logprobs = 0;
    std::shared_ptr<const LogitsProcessor> logits{};
    std::uint32_t prompt_tokens = 0;  ///< of its first tokens
    std::size_t junction = 0;         ///< tokens (ResumePoints), when it was last looked up
    std::uint32_t most_tokens = 0;    ///< with so many it has ended
    std::shared_ptr<const EmbeddedPrompt> embedded{};  ///< its first tokens, if not null
    bool will_be_forked = false;
    bool has_ended = false;  ///< and is forgotten when no step is under way that writes it

    /// Tokens whose KV is there once the steps under way are done.
    std::uint32_t begun() const { return computed + in_flight; }
  };
  /// The part of a waiting sequence that need not be computed when it is admitted.
  struct Start {
    SequenceStart found;
    std::size_t looked_up = 0;   ///< blocks that were looked up
    std::uint32_t computed = 0;  ///< tokens
    std::size_t junction = 0;    ///< ResumePoints::junction
    /// A block of each group with the tokens behind those of `found`, to be copied; or none. The
    /// process has one more reference to each.
    std::vector<BlockId> tail{};
    bool is_own_copy = false;  ///< what the device tier lacks is in the sequence's host tables
  };
  /// Of a sequence in a plan that is done.
  struct Lists {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
  };
  /// What an admission takes.
  struct Need {
    std::uint32_t tokens = 0;  ///< that its first step computes
    std::size_t now = 0;       ///< blocks for these
    std::size_t blocks = 0;    ///< for all tokens that it has
  };
  struct Round;
  /// A step that was planned and is not done.
  struct StepUnderWay {
    /// A sequence that has tokens in flight is not forgotten.
    struct Part {
      SeqId seq;
      Sequence* sequence;
      std::uint32_t tokens;
    };
    std::vector<Part> work;
    std::vector<SeqId> swapping_out;  ///< copied to the host
    std::vector<BlockId> leaving;     ///< blocks that its copies read; released when it is done
    std::vector<Demotion> demotions;
    /// Its size. The copy policy learns costs from it and from the step's times.
    std::size_t copied_blocks = 0, tokens = 0;
  };

  Tails::Domains whose_tails_help(std::size_t blocks, DomainId domain) const;
  Tails::Domains whose_tails_help(const Lack& others) const;
  void look_after_tails();
  bool give_up_tails(std::size_t blocks, DomainId domain);
  [[nodiscard]] Expected<std::vector<BlockId>> allocate(Round& round, std::size_t blocks,
                                                        DomainId domain);
  void demote(Round& round);
  Round round_of(const StepRequest& request) const;
  StepPlan begin(Round& round);
  bool all_go_on(const Round& round) const;
  std::uint32_t next_tokens(const Sequence& sequence) const;
  void count_queues(const Round& round) const;
  void compute_done(Sequence& sequence, std::uint32_t tokens);
  void append(const StepUnderWay& step, std::span<const SampledToken> sampled);
  static void score(const Sequence& sequence, ScheduledSequence& work);
  void keep_right_drafts(Sequence& sequence);
  void publish(const Sequence& sequence, Prefix& published, std::span<const BlockId> table);
  bool is_cached(const Sequence& sequence, GroupId group, std::size_t block) const;
  Prefix publish_run(const Sequence& sequence, const Prefix& from, std::span<const BlockId> blocks);
  void announce(const Sequence& sequence, GroupId group, std::size_t from);
  void apply_request(const StepRequest& request);
  void end(SeqId seq);
  void forget(SeqId seq);

  void serve_running(Round& round);
  bool make_room(Round& round, SeqId seq, Sequence& sequence, std::size_t tokens);
  void add_blocks(Sequence& sequence, std::span<const BlockId> fresh, std::size_t tokens);
  std::size_t lacking_blocks(const Sequence& sequence, std::size_t tokens) const;
  void release_passed(Sequence& sequence);
  std::optional<SeqId> next_victim(Round& round, SeqId seq, bool is_at_maximum) const;
  void admit_waiting(Round& round);
  enum class Admitted : std::uint8_t { yes, no_room, waits, lost };
  Admitted admit(Round& round, SeqId seq);
  void note_filled(Round& round, const Sequence& sequence);
  std::optional<Error> never_fits(const Sequence& sequence) const;
  [[nodiscard]] Expected<RoomStatus> room_for(const Question& question, std::size_t running);
  void give_back(Round& round, std::span<const BlockId> blocks);
  bool waits_for_other(const Round& round, Sequence& sequence, const Start& start);
  double patience(std::size_t tokens) const;
  bool has_more_come(const Round& round, const Sequence& sequence, const Start& start);
  Start start_of(const Sequence& sequence, const StepBlocks& filled);
  void find_tail(const Sequence& sequence, Start& start);
  void go_on_from(const Sequence& sequence, Start& start, std::uint32_t computed);
  void keep_tail(Sequence& sequence);
  Need need_of(const Sequence& sequence, const Start& start, std::size_t most_tokens) const;
  bool finds_room(const Need& need, DomainId domain, bool is_alone) const;
  std::size_t blocks_for_all(const Start& start, std::size_t tokens) const;
  void cancel(const Start& start);
  void fill_tables(Round& round, Sequence& sequence, Start& start, std::span<const BlockId> fresh,
                   std::size_t tokens);
  void count_first_admission(const Sequence& sequence, const Start& start);
  void count_origins(const SequenceStart& found);
  void preempt(Round& round, SeqId victim);
  bool is_to_swap(const Sequence& sequence);
  bool swap_out(Round& round, Sequence& sequence);
  std::size_t find_copies(const Sequence& sequence, Table& table);
  std::span<const BlockId> copy_out(Round& round, const Sequence& sequence, Table& table,
                                    std::span<const BlockId> fresh);
  void forget_progress(Round& round, Sequence& sequence);
  void schedule(Round& round, SeqId seq, Sequence& sequence, std::uint32_t tokens);

  Sequence new_sequence(DomainId domain, std::vector<TokenId> tokens, const ExtraKey& salt,
                        std::shared_ptr<const EmbeddedPrompt> embedded) const;
  std::uint32_t most_tokens(const StepRequest& request) const;
  std::size_t blocks_for(std::size_t tokens) const {
    // 32 bits, which are divided in half the time.
    return (static_cast<std::uint32_t>(tokens) + tokens_per_block_ - 1) / tokens_per_block_;
  }
  /// The first place of a sequence in a group that is read once so many tokens are computed.
  std::size_t first_place(GroupId group, std::size_t computed) const {
    return groups_[group].first_block(computed, tokens_per_block_);
  }
  /// The most blocks that a sequence of so many tokens ever holds.
  std::size_t most_blocks(std::size_t tokens) const {
    return groups_.most_blocks(tokens, config_.max_num_batched_tokens, tokens_per_block_);
  }
  std::size_t most_blocks_of(std::size_t group, std::size_t tokens) const {
    return groups_.group[group].most_blocks(tokens, config_.max_num_batched_tokens,
                                            tokens_per_block_);
  }
  /// The most blocks that a lookup finds: the last token is always computed.
  std::size_t most_found(const Sequence& sequence) const {
    return (sequence.tokens.size() - 1) / tokens_per_block_;
  }
  SingleFlight::Names claimable(const Sequence& sequence) const {
    return {sequence.names.names(groups_.id(0)), sequence.resets};
  }
  SequenceContent content_of(const Sequence& sequence) const {
    return {sequence.domain, sequence.names, sequence.tokens, sequence.resets};
  }
  Prefix root_of(const Sequence& sequence, GroupId group, std::size_t depth = 0) const {
    return BlockPool::root(sequence.domain, group, static_cast<std::uint32_t>(depth),
                           sequence.resets);
  }
  std::uint32_t index_of(BlockId block) const;

  BlockPool& pool_;
  CacheGroups groups_;
  BlockHasher hasher_;
  BlockManagerConfig config_;
  std::uint32_t tokens_per_block_;
  std::unordered_map<SeqId, Sequence> sequences_;
  StepOrder<Sequence> running_order_;
  std::deque<StepUnderWay> steps_;  ///< in their order
  std::vector<Lists> spent_;        ///< whose memory is to be had
  /// Whom plan_ahead() plans for, in their order; its step, and the most tokens of it.
  std::vector<SeqId> going_on_;
  std::uint64_t next_step_ = 0;
  std::uint32_t token_budget_ = 0;
  double last_computing_ = 0;  ///< seconds that the executor took for the last step
  Resets resets_{};            ///< of the prefix cache, when plan() was last called
  CopyPolicy copy_policy_;
  SingleFlight single_flight_;
  Tails tails_;
};

}  // namespace kvhive
