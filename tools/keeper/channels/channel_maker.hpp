#pragma once
// Makes the memory of channels in a thread of its own: a gigabyte takes a third of a second, and
// the keeper's event loop serves all. Users take turns, a few megabytes each. Memory that clients
// have is freed by other processes (file_helpers.hpp).

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/loop/background_worker.hpp"
#include "base/loop/event_loop.hpp"
#include "base/unique_fd.hpp"
#include "tools/keeper/channels/file_helpers.hpp"

namespace kvhive {

class ChannelMaker {
 public:
  /// Called on the event loop; the keeper implements it.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_made(std::uint64_t channel, Expected<UniqueFd> memory) = 0;
    virtual void on_freed(std::uint64_t channel) = 0;
  };

  /// \param loop  outlives this object, but does not run any more after its destruction
  ChannelMaker(EventLoop& loop, Events& events)
      : loop_(loop),
        events_(events),
        helpers_(loop, [this](std::uint64_t channel) { events_.on_freed(channel); }) {}

  /// Makes a channel's memory with its header. on_made() follows, unless it is cancelled.
  void make(std::uint64_t channel, uid_t user, std::size_t bytes);
  /// The client that waited is gone. True = on_freed() follows; false = nothing is being made.
  bool cancel(std::uint64_t channel);
  /// Frees a closed channel's memory, even if a process still has a descriptor of it. on_freed()
  /// follows.
  void free(std::uint64_t channel, uid_t user, UniqueFd memory, std::size_t bytes);
  /// Tells the client library soon which engine serves the channel, or kNoEngine.
  void say_serving(uid_t user, std::uint64_t channel, UniqueFd memory, std::uint32_t engine);

 private:
  struct Making;
  void made(std::uint64_t channel, const std::shared_ptr<Making>& making);

  EventLoop& loop_;
  Events& events_;
  /// What is being made, by channel. Only the event loop's thread uses the map.
  std::map<std::uint64_t, std::shared_ptr<Making>> making_;
  FileHelpers helpers_;
  BackgroundWorker worker_;  ///< the last member, so that it ends before what it uses
};

}  // namespace kvhive
