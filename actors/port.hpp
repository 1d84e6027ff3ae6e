#pragma once
// The port takes requests out of the clients' channels, on the caller's event loop, and sends them
// to the scheduler in batches. Answers do not pass through the port: the scheduler writes them into
// the channels.
//
// No user can keep the loop from the others. Domains take turns (by default each user is a domain),
// and so do the channels of a domain. In a turn a few requests of one channel are taken, refused or
// aborted, of a few bytes in all. Long prompts are read in another thread, in turns, too.
// Requests that are for another engine are looked at again a little later: whoever has room helps
// (ipc/channel/board.hpp). A domain that wastes its turns, because its clients ring for nothing or
// its requests are refused or aborted, has none for a while: both their number and the
// loop's time that they take are limited. A channel whose client rings without end is not listened
// to. Where requests are refused because too much waits, the next ones wait for each other: each
// wakes all engines, which have enough to do.

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "actors/long_prompts.hpp"
#include "actors/protocol.hpp"
#include "base/loop/event_loop.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "models/text/tokenizer.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

struct PortLimits {
  /// If not 0: a request without a seed gets one that is computed from this number and its prompt.
  std::uint64_t seed = 0;
  PromptLimits prompt;
  /// This engine, as the channels' other engines see it.
  Member self;
  SlotCounters* counters = nullptr;     ///< of the engine's slot, for the statistics
  std::vector<std::string> adapters{};  ///< names, by number (Transformer::add_adapter)
  /// The model's name, if the daemon serves others, too: their adapters are not here.
  std::string model{};
};

class Port {
 public:
  /// \param loop       outlives the port, but does not run any more after the port's destruction
  /// \param tokenizer  for prompts that come as text; outlives the port
  Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer, PortLimits limits);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port();

  /// Serves a channel from now on. The client rings `engine_bell`. The channel's requests share
  /// blocks with those of `domain`, and with no others, and have its `share` of the engine.
  void open(std::shared_ptr<EngineChannel> channel, UniqueFd engine_bell, DomainId domain,
            const DomainShare& share = {});
  /// The channel's client is gone: ends its requests, which releases their blocks.
  void close(std::uint64_t channel);
  bool has(std::uint64_t channel) const { return channels_.contains(channel); }
  /// The channels that are open.
  std::vector<std::uint64_t> channels() const;
  /// Takes no more requests; others take what waits here. Calls `when_done` once, on the loop, when
  /// those that it has taken have ended. Whoever wants this engine and no other waits.
  void take_no_more(std::function<void()> when_done);
  /// What the domain may have from now on.
  void set_share(DomainId domain, const DomainShare& share);
  /// SchedulerConfig::max_queued_tokens
  void set_queue_limit(std::uint32_t tokens);

  /// An engine has come or gone: there may be something to take in all channels.
  void look_at_all();

 private:
  /// A sum that begins anew with each window of time.
  class Count {
   public:
    /// Returns the sum.
    std::uint32_t add(std::uint32_t more);
    std::chrono::nanoseconds time_left() const;

   private:
    std::uint32_t sum_ = 0;
    std::chrono::steady_clock::time_point since_{};
  };
  /// Turns and the loop's time that they took.
  class Cost {
   public:
    struct Most {
      std::uint32_t turns;
      std::chrono::microseconds time;
    };
    /// Returns whether it is more than that in this window.
    bool add(std::uint32_t turns, std::chrono::nanoseconds time, const Most& most);
    std::chrono::nanoseconds time_left() const;

   private:
    Count turns_, time_;
  };
  struct OpenChannel {
    std::shared_ptr<EngineChannel> channel;
    UniqueFd bell;
    DomainId domain;
    DomainShare share;
    Count rings = {};
    bool wants_turn = false;      ///< it is in Domain::wanting
    bool was_rung = false;        ///< by its client, since its last turn
    bool is_watched = false;      ///< a timer is set that looks at it again
    bool is_glanced_at = false;   ///< the same, sooner
    bool is_unheard = false;      ///< a timer is set that listens to it again
    bool is_heard_again = false;  ///< the next edge is not a ring
    bool is_overloaded = false;   ///< requests are refused, and more come
    std::chrono::steady_clock::time_point refused_at{};  ///< as overloaded
    /// The next turn may take requests that others have had the time to take.
    bool helps = false;
  };
  void listen(std::uint64_t id, OpenChannel& open);
  void later(std::uint64_t id, std::chrono::nanoseconds pause,
             std::function<void(OpenChannel&)> then);
  void listen_later(std::uint64_t id, OpenChannel& open, std::chrono::nanoseconds pause);
  void on_ring(std::uint64_t id);
  void on_change(std::uint64_t id);
  void watch(std::uint64_t id, OpenChannel& open);
  void glance(std::uint64_t id, OpenChannel& open);
  bool has_looked_enough(const OpenChannel& open);
  struct Domain {
    /// Channels that may have something to take, in the order of their turns. Some may be closed.
    std::deque<std::uint64_t> wanting;
    Cost waste;
    Cost foreign;        ///< turns in which there was something for other engines only
    Count looks;         ///< us of turns that nobody rang for, and that found nothing to do
    bool rests = false;  ///< it has no turn until a timer ends this
  };
  void rest(DomainId id, Domain& domain);
  void want_turn(std::uint64_t id, OpenChannel& open);
  void take_turn_soon();
  void take_turn();
  enum class Turn : std::uint8_t { useful, looked, foreign, wasted };
  struct Drained {
    Turn turn = Turn::useful;
    std::size_t refused = 0;
    std::size_t in_vain = 0;  ///< refused or aborted requests, and questions
    std::size_t served = 0;
  };
  Drained drain(std::uint64_t id);
  static bool is_still_overloaded(OpenChannel& open);
  static bool takes_too_much(Domain& domain, const Drained& drained, std::chrono::nanoseconds time);
  struct Taken {
    std::size_t requests = 0;
    std::size_t questions = 0;  ///< of these (GenerationParams::only_asks)
  };
  Taken submit(OpenChannel& open);
  std::size_t abort(OpenChannel& open);
  /// The request with its prompt; nothing if that is being read in the other thread or was refused
  /// (then the caller rings).
  std::optional<Submission> tokenise(OpenChannel& open, TakenRequest& request);
  void beat_while_reading();
  void look_at_others();
  void say_that_it_hears();
  void wait_until_empty(std::function<void()> when_done);
  void count_refused(std::size_t requests) const;
  [[nodiscard]] Expected<std::int32_t> adapter_of(const std::string& name) const;
  [[nodiscard]] Expected<Prompt> tokens_of(const std::string& text) const;
  std::nullopt_t read_later(Submission submission, LongPrompts::Read read);
  std::optional<Submission> complete(Submission submission, Expected<Prompt> prompt) const;

  EventLoop& loop_;
  SchedulerHandle scheduler_;
  const Tokenizer& tokenizer_;
  PortLimits limits_;
  std::map<std::uint64_t, OpenChannel> channels_;
  std::map<DomainId, Domain> domains_;
  std::deque<DomainId> turns_;    ///< domains that want a turn and do not rest, in this order
  bool turn_comes_soon_ = false;  ///< a timer is set that takes the next turn
  std::size_t watched_ = 0;       ///< channels
  bool takes_no_more_ = false;
  bool beats_ = false;  ///< a timer is set that says that the engine goes on
  bool hears_ = false;  ///< a timer is set that says that it hears
  bool hangs_ = false;  ///< as was logged last
  std::chrono::steady_clock::time_point looked_{};  ///< when it last looked at the others
  LongPrompts long_prompts_;
};

}  // namespace kvhive
