#pragma once
// The table of the clients' channels and of the engines that serve them. It names an engine by a
// key that the keeper chooses, and sends to it through an EngineLine, so that tests need no
// sockets.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "config/machine_memory.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {

/// The most bytes that all channels together may have, and that the channels of one domain may
/// have.
struct ChannelQuota {
  std::size_t of_all = std::size_t{4} << 30;
  std::size_t of_domain = of_all;
};

using EngineKey = int;

/// Sends the channel table's messages to engines. An error = the engine cannot take the message
/// now.
class EngineLine {
 public:
  virtual ~EngineLine() = default;
  [[nodiscard]] virtual Expected<void> open(EngineKey engine, const ChannelOpen& message,
                                            const std::vector<int>& fds) = 0;
  [[nodiscard]] virtual Expected<void> close(EngineKey engine, const ChannelClose& message) = 0;
};

/// An EngineLine over sockets. An engine's key is the descriptor of its socket.
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

  /// A channel that no engine serves yet: what its client is sent.
  struct Created {
    std::uint64_t id;
    std::size_t bytes;
    int memory;         ///< belongs to the table, which keeps it open until the channel is closed
    UniqueFd doorbell;  ///< the client's end
  };
  /// Errors: `bytes` is out of bounds, is more than is left for the domain or for all clients
  /// together, or is more than machine and cgroup have available: a client must not cause the
  /// kernel to kill processes for want of memory.
  [[nodiscard]] Expected<Created> create(std::size_t bytes, std::uint32_t wanted_engine,
                                         DomainId domain, const MachineMemory& machine);

  /// What the table tells about one channel.
  struct Channel {
    std::size_t bytes = 0;
    std::uint32_t wanted_engine = kAnyEngine;
    DomainId domain;                  ///< the client's; sent to each engine that gets the channel
    std::optional<EngineKey> engine;  ///< none = the channel waits for an engine
  };
  /// Nothing if there is no such channel.
  std::optional<Channel> find(std::uint64_t id) const;

  /// Adds an engine that can serve channels. Clients ask for it by `number`.
  void add_engine(EngineKey engine, std::uint32_t number) { engines_.emplace(engine, number); }
  /// Removes an engine that is gone. Its channels then wait for another engine.
  /// \return  the ids of these channels
  std::vector<std::uint64_t> remove_engine(EngineKey engine);

  /// Gives each waiting channel to the engine that its client asked for, or else to the engine with
  /// the fewest channels. If there is no such engine, the channel goes on waiting. False = an
  /// engine could not be told now, because its queue is full (it is stopped or busy): call again
  /// soon.
  [[nodiscard]] bool place_waiting(EngineLine& line);

  /// Takes a channel from its engine, which cannot serve it or has died. The channel then waits for
  /// another engine. The client library can see that in the channel's header.
  void take_back(std::uint64_t id);

  /// Removes a channel, frees its memory and tells its engine.
  /// \return  the engine, if it could not be told: it would keep the channel for ever
  [[nodiscard]] std::optional<EngineKey> close(std::uint64_t id, EngineLine& line);
  /// The same, but tells no engine: for a channel that no engine has been sent.
  void forget(std::uint64_t id);

  /// How many channels the engine serves.
  std::size_t load_of(EngineKey engine) const;

 private:
  struct Entry {
    Channel channel;
    UniqueFd memory;
    UniqueFd doorbell;  ///< the engine's end
  };
  std::optional<EngineKey> best_engine_for(const Channel& channel) const;
  bool give(std::uint64_t id, Entry& entry, EngineKey engine, EngineLine& line) const;

  ChannelQuota quota_;
  std::map<EngineKey, std::uint32_t> engines_;
  std::map<std::uint64_t, Entry> channels_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvhive
