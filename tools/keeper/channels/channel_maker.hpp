#pragma once
// Makes and frees the memory of channels in a thread of its own: a gigabyte takes a third of a
// second, and the keeper's event loop serves all. Users take turns, a few megabytes each.
//
// Only the answers are made with their memory; the requests' is the client's. So only the answers
// are freed: no process but engines can write to them, or keep the lock of their file. The client's
// file is closed, nothing else, and by other threads, because the last close frees its memory: a
// client that writes to it from a buffer whose page fault is never answered keeps its lock for
// ever, and whoever waits for it cannot be killed.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/loop/background_worker.hpp"
#include "base/loop/event_loop.hpp"
#include "tools/keeper/channels/channels.hpp"

namespace kvhive {

class ChannelMaker {
 public:
  /// Called on the event loop; the keeper implements it.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_made(std::uint64_t channel, Expected<ChannelMemory> memory) = 0;
    virtual void on_freed(std::uint64_t channel) = 0;
  };

  /// \param loop  outlives this object, but does not run any more after its destruction
  ChannelMaker(EventLoop& loop, Events& events) : loop_(loop), events_(events) {}

  /// Makes a channel's memory with the answers' header. on_made() follows, unless it is cancelled.
  void make(std::uint64_t channel, uid_t user, std::size_t bytes);
  /// The client that waited is gone. True = on_freed() follows; false = nothing is being made.
  bool cancel(std::uint64_t channel);
  /// Frees a closed channel's memory, even if a process still has it open or mapped. on_freed()
  /// follows.
  void free(std::uint64_t channel, uid_t user, ChannelMemory memory, std::size_t bytes);

  /// For a successor: closes what a killed keeper had open and nobody knows.
  void close(std::vector<UniqueFd> strays);

 private:
  struct Making;
  void made(std::uint64_t channel, const std::shared_ptr<Making>& making);
  void close(std::uint64_t channel, uid_t user, ChannelMemory memory);

  EventLoop& loop_;
  Events& events_;
  /// What is being made, by channel. Only the event loop's thread uses the map.
  std::map<std::uint64_t, std::shared_ptr<Making>> making_;
  // The last members, so that they end before what they use; a job of the worker adds to the
  // closer.
  BackgroundWorker closer_{2};
  BackgroundWorker worker_;
};

}  // namespace kvhive
