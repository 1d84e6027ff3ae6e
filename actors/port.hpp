#pragma once
// Where an engine meets the outside: a plain thread on epoll (the caller's) that drains doorbells
// in batches into the scheduler. Answers do not come back this way: the scheduler writes them into
// the channels itself.

#include <functional>
#include <map>
#include <memory>

#include "actors/channel/engine_channel.hpp"
#include "actors/protocol.hpp"
#include "models/tokenizer.hpp"

namespace kvhive {

struct PortLimits {
  std::uint64_t seed =
      0;  ///< not 0: requests that ask for no seed get one made of it and their prompt
  /// Longer texts are refused unread: tokenising one would keep everybody else waiting.
  std::size_t most_prompt_bytes = ~std::size_t{0};
};

class Port {
 public:
  /// \param tokenizer  for prompts that come as text; outlives the port
  Port(SchedulerHandle scheduler, const Tokenizer& tokenizer, const PortLimits& limits = {});

  /// Calls `on_ready` in run() whenever `fd` can be read or its peer hangs up. The caller keeps the
  /// descriptor open.
  void watch(int fd, std::function<void()> on_ready);

  /// Serves a channel from now on; `doorbell` is the end its client rings.
  void open(std::shared_ptr<EngineChannel> channel, UniqueFd doorbell);
  /// Its client is gone: its requests end, its blocks return.
  void close(std::uint64_t channel);

  /// Serves until a handler calls stop().
  void run();
  void stop() { is_running_ = false; }

 private:
  struct OpenChannel {
    std::shared_ptr<EngineChannel> channel;
    UniqueFd doorbell;
  };
  void unwatch(int fd);
  void drain(OpenChannel& open);
  Expected<Submission> tokenise(EngineChannel& channel, TakenRequest& request) const;

  SchedulerHandle scheduler_;
  const Tokenizer& tokenizer_;
  PortLimits limits_;
  UniqueFd epoll_;
  bool is_running_ = true;
  std::map<int, std::function<void()>> watched_;
  std::map<std::uint64_t, OpenChannel> channels_;
};

}  // namespace kvhive
