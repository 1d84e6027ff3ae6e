#pragma once
// An engine's end of a channel: takes requests out of the client's file and writes their answers
// into the engines' file. Other engines have the same channel open.

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory/memory_object.hpp"
#include "ipc/channel/board.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "ipc/channel/doorbell.hpp"
#include "ipc/channel/output_sink.hpp"
#include "ipc/channel/request_check.hpp"
#include "ipc/channel/request_file.hpp"

namespace kvhive {

class EngineChannel;

/// What an engine holds for the requests of one channel, in its own memory, is at most this many
/// times the channel's size, or as much as one request needs if that is more. A request that would
/// need more waits in its slot until others of its channel have ended. It counts with
///  - kRequestMemory for what every request needs: its parameters, stop strings, sink, places in
///    tables;
///  - its text, until it has been tokenised, or its rows, if it is given as embeddings;
///  - kTokenMemory for each token of its prompt and for each of max_tokens, because the scheduler
///    and the block manager have a copy each, which may grow to twice its size. Until its text has
///    been tokenised, it counts as one token for each byte;
///  - the lists of its rules; with a repetition penalty also the tokens of its prompt once more.
/// An honest client's ranges do not overlap, and so few of its requests ever wait. A hostile client
/// could name the same bytes in all its slots.
inline constexpr std::size_t kMemoryPerChannelByte = 3;
inline constexpr std::size_t kRequestMemory = std::size_t{4} << 10;
inline constexpr std::size_t kTokenMemory = 3 * sizeof(TokenId);

/// The memory that an engine holds for one request, until this object is destroyed.
class HeldMemory {
 public:
  HeldMemory(std::shared_ptr<EngineChannel> channel, std::size_t bytes);
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory();
  /// The request's text is gone, and its prompt has this many tokens.
  /// \param rows_bytes  if it is given as embeddings
  void settle(std::size_t prompt_tokens, std::size_t max_tokens, const TokenRules& rules,
              std::size_t rows_bytes = 0);

 private:
  std::shared_ptr<EngineChannel> channel_;
  std::size_t bytes_;
};

/// A request copied out of its slot and checked: every range lies in the channel, every number is
/// in its bounds.
struct TakenRequest {
  std::uint32_t slot = 0;
  std::uint32_t number = 0;  ///< of the client's requests in this slot
  std::uint32_t take = 0;    ///< how often this engine has taken a request from this slot
  GenerationParams params;
  PromptKind prompt_kind = PromptKind::text;
  std::string text;              ///< the prompt, if its kind is text
  std::vector<TokenId> tokens;   ///< the prompt, if its kind is tokens
  ChannelRange rows;             ///< where the prompt is, if its kind is embeddings
  ChannelRange log, text_room;   ///< where its answer goes
  ChannelRange prompt_log;       ///< and where the prompt's scores go
  std::vector<TokenId> journal;  ///< what engines generated before they died
  /// If an engine that died had admitted the request: the statistics of its first admission, which
  /// stay the request's.
  std::optional<RequestStats> earlier_admission;
  RequestTimes times;  ///< as far as an engine has got with it
  std::shared_ptr<HeldMemory> held;
  bool is_new = false;  ///< no engine had it before

  /// The most prompt tokens whose scores fit into prompt_log; no limit if it is not scored.
  std::size_t most_scored() const;
};

class EngineChannel : public std::enable_shared_from_this<EngineChannel> {
 public:
  /// Takes a client's channel. `client` wakes the client. If this fails, `requests` is still the
  /// caller's: closing it last frees the client's memory, which can take long.
  [[nodiscard]] static Expected<std::shared_ptr<EngineChannel>> open(
      std::uint64_t id, const Member& self, UniqueFd&& requests, const UniqueFd& answers,
      std::size_t bytes, std::unique_ptr<ClientRing> client);

  /// The same for answers that are mapped already. The caller keeps them mapped for as long as the
  /// channel is in use, and has checked their header.
  static std::shared_ptr<EngineChannel> in_memory(std::uint64_t id, const Member& self,
                                                  RequestFile requests,
                                                  std::span<std::byte> answers,
                                                  std::unique_ptr<ClientRing> client);
  EngineChannel(const EngineChannel&) = delete;
  EngineChannel& operator=(const EngineChannel&) = delete;
  ~EngineChannel();

  std::uint64_t id() const { return id_; }
  Board& board() const { return *self_.board; }

  /// No other engine has the channel: it is always this one's turn.
  void do_not_share() { is_shared_ = false; }
  bool is_shared() const { return is_shared_; }
  void set_queue_limit(std::uint32_t tokens) { self_.most_queued = tokens; }

  /// Takes and returns submitted requests, until they have cost about `most_bytes`: the bytes of
  /// their prompts and journals, and kRequestCost for each, also for those that are refused. A
  /// malformed request, one that is too long, or one that was taken over too often, is not
  /// returned: its slot is finished with an error. The client is rung once for all of these.
  ///
  /// Takes those whose turn this engine is, also from an engine that died. (That engine may have
  /// died before it rang, so the client is rung.) Others may be for this engine later: then
  /// watches() says so.
  /// Tells the board how many it takes (Board::take); the caller tells what it does not pass on.
  /// \param help  how many more to take, of those that were left to others, and of those that wait
  ///              at engines which are much busier or do nothing. Not 0 = others have had the time
  std::vector<TakenRequest> take_submitted(const PromptLimits& limits = {},
                                           std::size_t most_bytes = ~std::size_t{0},
                                           std::size_t help = 0);
  static constexpr std::size_t kRequestCost = std::size_t{1} << 10;
  /// How many requests the last call has refused, or the scheduler since the call before.
  std::size_t refused() const { return refused_; }
  /// Of these, those of the last call itself.
  std::size_t refused_at_once() const { return refused_at_once_; }
  /// Whether a request was refused as overloaded since the last call.
  bool was_overloaded() { return was_overloaded_.exchange(false, std::memory_order_relaxed); }
  /// Whether the client had written marks since the call before the last.
  bool had_news() const { return had_news_; }
  /// Whether there is a request that was left to another engine, for now: look again in a while.
  bool watches() const { return watches_; }
  /// Whether one of these was left in doubt that the other engine takes it: look again after
  /// Board::kLeftFor.
  bool doubts() const { return doubts_; }

  /// Slots whose client has asked for an abort, at most `most`. Each abort is returned once.
  std::vector<std::uint32_t> take_aborts(std::size_t most = kChannelSlots);

  /// Whether the last calls have left something for another turn: call both again. False if what
  /// is left waits for memory.
  bool has_more() const { return has_more_ || has_more_aborts_; }
  bool has_more_aborts() const { return has_more_aborts_; }

  /// `on_change` is called in any thread when take_submitted() may find something: requests that
  /// waited for memory may have it, or another engine has taken a request of this one.
  void on_change(std::function<void()> on_change);

  /// The values of a prompt that is given as embeddings. In any thread.
  [[nodiscard]] Expected<std::vector<float>> read_rows(const ChannelRange& rows) const;

  /// The object that writes the results of a taken request into its slot.
  std::unique_ptr<OutputSink> sink(const TakenRequest& request);

  /// Wakes the client if anything was written since the last call.
  void ring();
  /// Closes a descriptor that the client has, too, in the thread that rings the client.
  void close(UniqueFd shared) { client_->close(std::move(shared)); }

 private:
  class Sink;
  friend class HeldMemory;
  EngineChannel(std::uint64_t id, const Member& self, RequestFile requests,
                std::span<std::byte> answers, std::unique_ptr<ClientRing> client);

  /// A request that this engine may take.
  struct Found {
    std::uint32_t slot;
    SlotState seen;        ///< taken only if the slot still says this
    std::uint32_t number;  ///< of the client's requests in this slot
    bool is_takeover;      ///< from an engine that died
    bool is_new() const {
      return seen.phase() == Phase::finished || seen.phase() == Phase::reading;
    }
  };
  bool look_at_marks();
  Rooms rooms_after_turns() const;
  std::uint32_t newest_request(std::uint32_t slot) const;
  /// What a call of take_submitted() may still take of others, and what it has taken so far.
  struct Help {
    std::size_t left = 0;
    Since since;
  };
  std::optional<Found> find(std::uint32_t slot, Help& help);
  bool takes_turn(const RequestName& request, Help& help);
  bool may_help(const RequestName& request, const std::optional<EngineLife>& next,
                const Help& help);
  bool may_take_from(EngineLife engine, const Help& help) const;
  std::optional<Found> leave_for_now();
  bool is_for_me(const RequestName& request, const Since& since);
  void forget_left(std::uint32_t slot, SlotState seen);
  void ring_for(std::uint32_t slot, SlotState ended_by_a_dead_engine);
  bool claim(std::uint32_t slot, SlotState seen, SlotState mine);
  bool change(std::uint32_t slot, std::uint32_t take, SlotState& mine, Phase phase);
  RequestBody copy_body(const Found& found) const;
  [[nodiscard]] Expected<void> check(const Found& found, const RequestBody& body,
                                     const PromptLimits& limits) const;
  bool accept(const Found& found, const RequestBody& body);
  [[nodiscard]] Expected<TakenRequest> take(const Found& found, const RequestBody& body,
                                            const PromptLimits& limits);
  [[nodiscard]] Expected<void> read_prompt(const RequestBody& body, TakenRequest& request) const;
  [[nodiscard]] Expected<void> read_rules(const RequestBody& body, TokenRules& rules) const;
  void read_journal(const RequestBody& body, std::uint32_t tokens, TakenRequest& request) const;
  std::optional<RequestStats> earlier_admission(std::uint32_t slot) const;
  bool must_wait(const RequestBody& body, const PromptLimits& limits);
  bool has_room_for(std::size_t bytes) const;
  void release(std::size_t bytes);
  void tell_change();
  AnswerSlot& answer(std::uint32_t slot) const;
  void finish(AnswerSlot& slot, FinishReason reason, const Error& error, std::size_t text_bytes);

  std::uint64_t id_;
  Member self_;
  RequestFile requests_;
  MappedMemory map_;  ///< owns the mapping behind answers_; empty if in_memory() made the channel
  std::span<std::byte> answers_;
  std::unique_ptr<ClientRing> client_;
  std::atomic<bool> has_news_{false};
  std::atomic<std::size_t> held_{0};     ///< for requests that have not ended
  std::atomic<bool> wants_room_{false};  ///< a request waits until there is memory for it
  std::mutex on_change_mutex_;
  std::function<void()> on_change_;  ///< guarded by on_change_mutex_
  std::uint32_t next_slot_ = 0;      ///< where the next call of take_submitted() begins
  std::size_t refused_ = 0;
  std::size_t refused_at_once_ = 0;
  std::atomic<std::size_t> late_refusals_{0};  ///< of requests that had been taken
  std::atomic<bool> was_overloaded_{false};
  bool has_more_ = false;
  bool has_more_aborts_ = false;
  bool is_shared_ = true;
  /// An engine may lose a request and take it again before it knows: then the slot's word is as it
  /// was. So it counts what it takes, and nobody claims with a count that is not the newest.
  std::mutex takes_mutex_;
  std::array<std::uint32_t, kChannelSlots> takes_{};  ///< guarded by takes_mutex_, with the words
  bool watches_ = false;
  bool doubts_ = false;
  bool had_news_ = false;
  RequestMarks marks_{};  ///< as the client's file had them when it was last looked at
  std::array<bool, kChannelSlots> abort_seen_{};
  /// How the slot's request was left to another engine.
  struct Left {
    SlotState seen{};         ///< whoever has taken it since, it is left anew
    std::uint32_t times = 0;  ///< that this one might have taken it instead
    std::optional<std::chrono::steady_clock::time_point> at{};  ///< first, in doubt
  };
  std::array<Left, kChannelSlots> left_{};
};

}  // namespace kvhive
