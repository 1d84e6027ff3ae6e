#pragma once
// The port takes requests out of the clients' channels, on the caller's event loop, and sends them
// to the scheduler in batches. Answers do not pass through the port: the scheduler writes them into
// the channels.

#include <map>
#include <memory>

#include "actors/protocol.hpp"
#include "base/event_loop.hpp"
#include "ipc/engine_channel.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

struct PortLimits {
  /// If not 0: a request without a seed gets one that is computed from this number and its prompt.
  std::uint64_t seed = 0;
  /// A longer prompt text is refused without being tokenised, which would delay all other requests.
  std::size_t most_prompt_bytes = ~std::size_t{0};
};

class Port {
 public:
  /// \param loop       outlives the port, but does not run any more after the port's destruction
  /// \param tokenizer  for prompts that come as text; outlives the port
  Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer,
       const PortLimits& limits = {});

  /// Serves a channel from now on. `doorbell` becomes readable when the client rings it. The
  /// channel's requests share blocks with those of `domain`, and with no others.
  void open(std::shared_ptr<EngineChannel> channel, UniqueFd doorbell, DomainId domain);
  /// The channel's client is gone: ends its requests, which releases their blocks.
  void close(std::uint64_t channel);

 private:
  struct OpenChannel {
    std::shared_ptr<EngineChannel> channel;
    UniqueFd doorbell;
    DomainId domain;
  };
  void drain(OpenChannel& open);
  [[nodiscard]] Expected<Submission> tokenise(EngineChannel& channel, TakenRequest& request) const;

  EventLoop& loop_;
  SchedulerHandle scheduler_;
  const Tokenizer& tokenizer_;
  PortLimits limits_;
  std::map<std::uint64_t, OpenChannel> channels_;
};

}  // namespace kvhive
