#pragma once
// Decides which requests are served next. Plain C++; the actor around it is a shell.
//
// Source: vLLM V1 Scheduler. There are no prefill and decode phases: every request has tokens that
// are not computed yet. Running requests come first, in order. The FCFS policy preempts the request
// that was admitted last, and puts it at the front of the queue. The priority policy preempts the
// least important request, and queues it again by its priority.
//
// Between domains the order is kvhive's (waiting_queue.hpp). With the priority policy, the domain
// that has been served most is preempted first: nobody keeps blocks from another domain by calling
// its requests important.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/messages.hpp"
#include "actors/scheduler/drain_rate.hpp"
#include "actors/scheduler/open_questions.hpp"
#include "actors/scheduler/output_text.hpp"
#include "actors/scheduler/request_meter.hpp"
#include "actors/scheduler/waiting_queue.hpp"
#include "actors/speculation/guess_policy.hpp"
#include "actors/speculation/prompt_lookup.hpp"
#include "actors/step_order.hpp"
#include "config/choices.hpp"
#include "ipc/channel/board.hpp"

namespace kvhive {

/// What limits the length of a request; decides which remedy an error text names.
enum class LengthBound : std::uint8_t {
  option,  ///< --max-model-len
  model,   ///< the positions that the model was trained for
  pool,    ///< the tokens that the pool holds
};

/// What a user can do about a prompt that is too long.
const char* remedy_for(LengthBound bound);

struct SchedulerConfig {
  SchedulingPolicy policy = SchedulingPolicy::fcfs;
  std::uint32_t max_num_seqs = 128;
  std::uint32_t max_num_batched_tokens = 2048;
  std::uint32_t max_model_len = 0;  ///< tokens of a request, prompt and output together
  LengthBound length_bound = LengthBound::option;
  std::uint32_t vocab_size = 0;
  std::vector<TokenId> eos_token_ids;
  const Tokenizer* tokenizer = nullptr;  ///< for text and stop strings; outlives the scheduler
  /// Called with each step and submission: with how many submissions the load counts, and whether a
  /// step is under way.
  std::function<void(EngineLoad, std::uint32_t, bool)> tell_load{};
  PromptLookup lookup{};  ///< guesses at what a running request's next tokens are
  /// Tokens of the requests that wait. What comes then is refused as overloaded. 0 = no limit.
  std::uint32_t max_queued_tokens = 0;
  SlotCounters* counters = nullptr;  ///< of the engine's slot, for the statistics
  RequestMeter::Clock clock = monotonic_ns;
};

class SchedulerState {
 public:
  explicit SchedulerState(SchedulerConfig config)
      : config_(std::move(config)),
        meter_(config_.counters, config_.clock),
        waiting_(config_.policy) {}

  /// Queues a request. An invalid request is refused at once, through its sink. After the last of
  /// several, the caller calls flush().
  ///
  /// A request that another engine had begun waits only when its journal has been replayed. What
  /// has_journals() then tells of, the caller replays in pieces.
  void submit(Submission&& submission);
  /// Replays journals until it has replayed kReplayedAtOnce tokens. The caller may do other things
  /// before it calls this again.
  void replay_some();
  bool has_journals() const { return !journals_.empty(); }
  static constexpr std::size_t kReplayedAtOnce = 2048;  ///< tokens; about half a millisecond

  /// From now on these hold. Requests that wait already are not refused.
  void set_limits(const NewLimits& limits);

  /// Wakes the readers of all that was written. (abort() and complete() do that themselves.)
  void flush();
  void abort(const AbortBatch& batch);

  /// The next step to send to the block manager; nothing if there is nothing to do. The caller
  /// calls complete() before it calls this again.
  std::optional<StepRequest> next_step();
  void complete(const StepDone& done);

  /// The next questions to send to the block manager; nothing if there are none, or those before
  /// have not been answered.
  std::optional<Questions> next_questions() { return questions_.next(running_.size()); }
  void answer(const Answers& answers);

  /// True = the last step computed nothing although requests wait, because other engines hold the
  /// pool's blocks. The caller tries again later.
  bool is_starved() const { return is_starved_; }
  /// True = the block manager keeps blocks for forks: when there is nothing else to do, the caller
  /// waits for Tails::kLife, and then calls look_after_tails() and next_step().
  bool keeps_tails() const { return keeps_tails_; }
  void look_after_tails() { looks_after_tails_ = true; }
  std::size_t unfinished() const { return requests_.size() + questions_.size(); }

 private:
  struct Request {
    RequestKey key;
    std::uint64_t arrival = 0;
    std::uint32_t prompt_tokens = 0;
    std::vector<TokenId> tokens;  ///< the prompt, then the generated tokens
    GenerationParams params;
    std::shared_ptr<OutputSink> sink;
    DomainId domain;
    OutputText text;
    RequestStats stats;
    bool is_known = false;     ///< a step has told the block manager of the request
    bool is_admitted = false;  ///< it was admitted at least once, perhaps by an engine that died
    bool is_unwanted = false;  ///< its client is gone or has aborted it, or it was lost
    std::optional<WaitingQueue::Place> place{};  ///< while it waits
    RequestTimes times{};
    std::uint64_t last_token = 0;  ///< when this engine computed it; 0 = none yet
    ExtraKey salt{};
    std::int32_t adapter = -1;
    std::shared_ptr<const LogitsProcessor> logits{};
    std::shared_ptr<const EmbeddedPrompt> embedded{};  ///< its prompt, if not null
    std::size_t guessed = 0;  ///< tokens that the step which is out, or was last, guesses of it
    HitRate hit_rate{};

    std::uint32_t generated() const {
      return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens;
    }
  };

  /// Tokens that an engine generated before it died, and how many of them have been replayed.
  struct Journal {
    SeqId seq;
    std::vector<TokenId> tokens;
    std::size_t replayed = 0;
  };

  void refuse(const Submission& submission, const Error& error);
  void ask(Submission&& submission);
  [[nodiscard]] Expected<void> check(const Submission& submission) const;
  [[nodiscard]] Expected<std::shared_ptr<const LogitsProcessor>> processor_of(
      const Submission& submission) const;
  [[nodiscard]] Expected<void> check_queue(const Submission& submission) const;
  tl::unexpected<Error> overloaded(DomainId domain, const std::string& whose, std::uint32_t most,
                                   const char* option) const;
  static WaitingQueue::Entry entry_of(SeqId seq, const Request& request);
  void enqueue(SeqId seq);
  void leave_queue(SeqId seq, Request& request);
  void give_up(SeqId seq);
  void drop_unwanted();
  void forget(SeqId seq);
  void flush_later(std::shared_ptr<OutputSink> sink);
  void tell_load();
  void admit(const Admission& admission);
  void preempt(SeqId seq);
  void take(const SampledToken& sampled, std::uint64_t now);
  void append(SeqId seq, Request& request, const GeneratedToken& token);
  std::vector<Drafts> guess();
  void learn_from_guesses(const StepDone& done);
  std::size_t replay(Journal& journal, std::size_t most_tokens);
  FinishReason reason_to_end(const Request& request, TokenId token, bool stop_string) const;
  void finish(SeqId seq, FinishReason reason, const Error& error = {});
  std::vector<SeqId> victims() const;

  SchedulerConfig config_;
  RequestMeter meter_;
  std::uint64_t next_seq_ = 1;
  std::uint32_t submitted_ = 0;
  std::uint64_t next_step_ = 1;
  std::unordered_map<SeqId, Request> requests_;
  StepOrder<Request> sampled_order_;
  std::map<RequestKey, SeqId> by_key_;
  /// Any request leaves it in logarithmic time: when a client with many dies, they all end at once.
  WaitingQueue waiting_;
  OpenQuestions questions_;
  DrainRate drain_rate_;
  GuessPolicy guess_policy_;
  std::size_t admitted_tokens_ = 0;  ///< that have left the queue in this step
  std::vector<SeqId> unwanted_;      ///< to be ended as soon as no step is out; some may have ended
  std::vector<SeqId> running_;
  std::deque<Journal> journals_;  ///< of requests that neither wait nor run yet
  std::vector<SeqId> ended_;      ///< the next step sends them to the block manager
  std::vector<SeqId> sampled_;    ///< by the last step; some may have ended
  std::vector<OutputSink*> to_flush_;
  std::vector<std::shared_ptr<OutputSink>> kept_;  ///< of these, those of no request (any more)
  bool step_is_out_ = false;
  std::uint64_t step_began_ = 0;  ///< nanoseconds, as RequestTimes
  bool is_starved_ = false;
  bool keeps_tails_ = false;
  bool looks_after_tails_ = false;  ///< the next step may be empty
  /// Requests that waited for others' blocks in the last step: they take no place of those behind.
  std::size_t waits_for_others_ = 0;
};

}  // namespace kvhive
