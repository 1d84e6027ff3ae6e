#pragma once
// The port takes requests out of the clients' channels, on the caller's event loop, and sends them
// to the scheduler in batches. Answers do not pass through the port: the scheduler writes them into
// the channels.
//
// No channel can keep the loop from the others. A channel is drained in small pieces, between which
// other channels have their turn; long prompts are tokenised in another thread; and a channel whose
// client rings without end is not listened to for a while.

#include <chrono>
#include <map>
#include <memory>

#include "actors/long_prompts.hpp"
#include "actors/protocol.hpp"
#include "base/loop/event_loop.hpp"
#include "ipc/engine_channel.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

struct PortLimits {
  /// If not 0: a request without a seed gets one that is computed from this number and its prompt.
  std::uint64_t seed = 0;
  PromptLimits prompt;
};

class Port {
 public:
  /// \param loop       outlives the port, but does not run any more after the port's destruction
  /// \param tokenizer  for prompts that come as text; outlives the port
  Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer,
       PortLimits limits = {});

  /// Serves a channel from now on. The client rings `engine_bell`. The channel's requests share
  /// blocks with those of `domain`, and with no others.
  void open(std::shared_ptr<EngineChannel> channel, UniqueFd engine_bell, DomainId domain);
  /// The channel's client is gone: ends its requests, which releases their blocks.
  void close(std::uint64_t channel);

 private:
  struct OpenChannel {
    std::shared_ptr<EngineChannel> channel;
    UniqueFd bell;
    DomainId domain;
    std::uint32_t rings = 0;  ///< since `counted_from`
    std::chrono::steady_clock::time_point counted_from{};
    bool drains_soon = false;  ///< a timer is set that drains the channel
  };
  void listen(std::uint64_t id, OpenChannel& open);
  void on_ring(std::uint64_t id);
  bool rings_too_often(OpenChannel& open) const;
  void drain(std::uint64_t id);
  void drain_soon(std::uint64_t id, OpenChannel& open);
  void submit(OpenChannel& open);
  void abort(OpenChannel& open);
  /// The request, tokenised; nothing if it is being tokenised in the other thread or was refused
  /// (then the caller rings).
  std::optional<Submission> tokenise(OpenChannel& open, TakenRequest& request);
  std::optional<Submission> complete(Submission submission,
                                     Expected<std::vector<TokenId>> tokens) const;

  EventLoop& loop_;
  SchedulerHandle scheduler_;
  const Tokenizer& tokenizer_;
  PortLimits limits_;
  std::map<std::uint64_t, OpenChannel> channels_;
  LongPrompts long_prompts_;
};

}  // namespace kvhive
