#pragma once
// The table of the clients' channels and of the engines that serve them. It knows an engine by a
// key that the keeper chooses and talks to it through an EngineLine, so that tests need no sockets.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "config/machine_memory.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {

/// Bytes that channels may have together: of all clients, and of those of one domain.
struct ChannelQuota {
  std::size_t of_all = std::size_t{4} << 30;
  std::size_t of_domain = of_all;
};

using EngineKey = int;

/// How the table of channels talks to an engine; an error if the engine cannot take the message
/// now.
class EngineLine {
 public:
  virtual ~EngineLine() = default;
  [[nodiscard]] virtual Expected<void> open(EngineKey engine, const ChannelOpen& message,
                                            const std::vector<int>& fds) = 0;
  [[nodiscard]] virtual Expected<void> close(EngineKey engine, const ChannelClose& message) = 0;
};

/// The key is the engine's socket.
class EngineSockets : public EngineLine {
 public:
  [[nodiscard]] Expected<void> open(EngineKey engine, const ChannelOpen& message,
                                    const std::vector<int>& fds) override {
    return send_packet(engine, message, fds);
  }
  [[nodiscard]] Expected<void> close(EngineKey engine, const ChannelClose& message) override {
    return send_packet(engine, message);
  }
};

class Channels {
 public:
  using EngineKey = kvhive::EngineKey;
  explicit Channels(const ChannelQuota& quota = {}) : quota_(quota) {}

  /// A channel that no engine serves yet, and what its client needs of it.
  struct Created {
    std::uint64_t id;
    std::size_t bytes;
    int memory;  ///< the table's; open as long as the channel
    UniqueFd doorbell;
  };
  /// Errors: `bytes` out of bounds, more than is left for the domain or for all clients together,
  /// or more than machine and cgroup have: a client must not bring the OOM killer upon all.
  [[nodiscard]] Expected<Created> create(std::size_t bytes, std::uint32_t wanted_engine,
                                         DomainId domain, const MachineMemory& machine);

  /// What a client has of its channel.
  struct Channel {
    std::size_t bytes = 0;
    std::uint32_t wanted_engine = kAnyEngine;
    DomainId domain;                  ///< told to each engine that gets it
    std::optional<EngineKey> engine;  ///< none = it waits for one
  };
  /// Nothing if there is no such channel.
  std::optional<Channel> find(std::uint64_t id) const;

  /// An engine is there to serve channels; `number` is what clients call it.
  void add_engine(EngineKey engine, std::uint32_t number) { engines_.emplace(engine, number); }
  /// The engine is gone: its channels wait for another one.
  /// \return  their ids
  std::vector<std::uint64_t> remove_engine(EngineKey engine);

  /// Gives each waiting channel to the engine it wants, or to the one that serves the fewest; a
  /// channel without such an engine goes on waiting. False = an engine could not be told just now
  /// (it is stopped or busy, and its queue is full): call again soon.
  [[nodiscard]] bool place_waiting(EngineLine& line);

  /// Its engine cannot serve it or has died: it waits for another one. The client library sees it.
  void take_back(std::uint64_t id);

  /// Forgets a channel, gives its memory back and tells its engine. The engine, if it could not be
  /// told: it would keep the channel for ever.
  [[nodiscard]] std::optional<EngineKey> close(std::uint64_t id, EngineLine& line);
  /// The same for a channel that no engine has been told of.
  void forget(std::uint64_t id);

  std::size_t load_of(EngineKey engine) const;

 private:
  struct Entry {
    Channel channel;
    UniqueFd memory;
    UniqueFd doorbell;  ///< the engine's end; the client's is the client's
  };
  std::optional<EngineKey> best_engine_for(const Channel& channel) const;
  bool give(std::uint64_t id, Entry& entry, EngineKey engine, EngineLine& line) const;

  ChannelQuota quota_;
  std::map<EngineKey, std::uint32_t> engines_;
  std::map<std::uint64_t, Entry> channels_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvhive
