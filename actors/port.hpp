#pragma once
// Where an engine meets the outside: on an event loop (the caller's) it drains doorbells in batches
// into the scheduler. Answers do not come back this way: the scheduler writes them into
// the channels itself.

#include <map>
#include <memory>

#include "actors/protocol.hpp"
#include "base/event_loop.hpp"
#include "ipc/engine_channel.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

struct PortLimits {
  std::uint64_t seed =
      0;  ///< not 0: requests that ask for no seed get one made of it and their prompt
  /// Longer texts are refused unread: tokenising one would keep everybody else waiting.
  std::size_t most_prompt_bytes = ~std::size_t{0};
};

class Port {
 public:
  /// \param loop       outlives the port, and does not run after it is gone
  /// \param tokenizer  for prompts that come as text; outlives the port
  Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer,
       const PortLimits& limits = {});

  /// Serves a channel from now on; `doorbell` is the end its client rings. Its requests share with
  /// those of `domain`, and with no others.
  void open(std::shared_ptr<EngineChannel> channel, UniqueFd doorbell, DomainId domain);
  /// Its client is gone: its requests end, its blocks return.
  void close(std::uint64_t channel);

 private:
  struct OpenChannel {
    std::shared_ptr<EngineChannel> channel;
    UniqueFd doorbell;
    DomainId domain;
  };
  void drain(OpenChannel& open);
  Expected<Submission> tokenise(EngineChannel& channel, TakenRequest& request) const;

  EventLoop& loop_;
  SchedulerHandle scheduler_;
  const Tokenizer& tokenizer_;
  PortLimits limits_;
  std::map<std::uint64_t, OpenChannel> channels_;
};

}  // namespace kvhive
