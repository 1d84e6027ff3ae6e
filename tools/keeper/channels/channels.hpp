#pragma once
// The table of the clients' channels and of the engines that serve them: each channel is given to
// all engines, and they share its requests (ipc/channel/board.hpp), unless its client asked for one
// engine. The table names an engine by a key that the keeper chooses, and sends to it through an
// EngineLine, so that tests need no sockets.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "config/machine/machine_memory.hpp"
#include "ipc/channel/channel_memory.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/channels/channel_row.hpp"

namespace kvhive {

/// The most bytes that all channels together may have, those of one domain, and those of one user.
/// The daemon's own user and root are not limited as users. Large channels may have three quarters
/// of what all or a domain may have, so that clients that ask for a gigabyte and leave, again and
/// again, keep no usual client out.
struct ChannelQuota {
  static constexpr std::size_t kLarge = std::size_t{16} << 20;
  static constexpr std::size_t for_large(std::size_t quota) { return quota / 4 * 3; }

  std::size_t of_all = std::size_t{4} << 30;
  std::size_t of_domain = of_all / 2;
  std::size_t of_user = of_all / 4;
};

/// Who asks for a channel.
struct ChannelOwner {
  DomainId domain;
  uid_t user = 0;
  bool is_limited = false;  ///< the user is a stranger to the daemon
  DomainShare share{};      ///< the domain's
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
  [[nodiscard]] virtual Expected<void> tell_of_death(EngineKey engine) = 0;
  /// Only these channels are open.
  [[nodiscard]] virtual Expected<void> tell_known(EngineKey engine,
                                                  const std::string& channels) = 0;
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
  [[nodiscard]] Expected<void> tell_of_death(EngineKey engine) override {
    return send_packet(engine, EngineDied{});
  }
  [[nodiscard]] Expected<void> tell_known(EngineKey engine, const std::string& channels) override {
    return send_packet(engine, ChannelsKnown{}, {}, channels);
  }
};

class Channels {
 public:
  using EngineKey = kvhive::EngineKey;
  explicit Channels(const ChannelQuota& quota = {}) : quota_(quota) {}

  /// From now on these hold; channels that there are stay.
  void set_quota(const ChannelQuota& quota) { quota_ = quota; }
  void set_share(DomainId domain, const DomainShare& share);

  /// Error: no channel may have so many.
  [[nodiscard]] static Expected<void> check_bytes(std::size_t bytes);
  /// Enters a channel whose memory is still to be made. It counts against the quotas from now on.
  /// Errors: `bytes` is out of bounds, is more than is left for the user, the domain or all clients
  /// together, or is more than machine and cgroup have available: a client must not cause the
  /// kernel to kill processes for want of memory.
  /// \return  its number
  [[nodiscard]] Expected<std::uint64_t> reserve(std::size_t bytes, std::uint32_t wanted_engine,
                                                const ChannelOwner& owner,
                                                const MachineMemory& machine, ModelId model = {});

  /// A channel that no engine serves yet: what its client is sent. The descriptors are copies.
  struct Created {
    std::size_t bytes;
    UniqueFd requests;     ///< for writing
    UniqueFd answers;      ///< for reading
    int engine_bell;       ///< the table's, open until the channel is closed
    UniqueFd client_bell;  ///< the client's end
  };
  /// The memory of a reserved channel is made, and is to be sent to its client.
  [[nodiscard]] Expected<Created> complete(std::uint64_t id, ChannelMemory memory);
  /// The same once more, as long as the client is not known to have it.
  [[nodiscard]] Expected<Created> offer(std::uint64_t id) const;
  /// The client has it.
  void taken(std::uint64_t id);

  /// The client says that it has sealed its requests.
  /// \return  what is to be pinned now (request_pinner.hpp)
  [[nodiscard]] Expected<const ChannelMemory*> sealed(std::uint64_t id);
  /// The requests' pages are pinned: engines can serve the channel now.
  void pinned(std::uint64_t id);

  // -- for a successor ----------------------------------------------------------------------------
  /// Channels that have changed or were closed since the last call.
  std::set<std::uint64_t> take_changed() { return std::exchange(changed_, {}); }
  /// What rows may still name. To be closed once the changes are written down.
  std::vector<UniqueFd> take_dropped() { return std::exchange(dropped_, {}); }
  /// Nothing if it is closed.
  std::optional<ChannelRow> row_of(std::uint64_t id) const;
  std::uint64_t next_id() const { return next_id_; }
  void set_next_id(std::uint64_t id) { next_id_ = id; }
  /// Enters a channel of a killed keeper. Its engines are there already. They are told of all
  /// channels and all deaths again: nobody knows what they were told last.
  void restore(const ChannelRow& row, const DomainShare& share = {});
  void tell_all_again();
  /// The same as sealed(), for a channel that was being pinned: some pages may be pinned already.
  /// Nothing if it was not, or is.
  [[nodiscard]] Expected<const ChannelMemory*> pinned_in_part(std::uint64_t id);
  enum class Stage : std::uint8_t { reserved, made, sealed, pinned };
  std::vector<std::pair<std::uint64_t, Stage>> stages() const;

  /// What the table tells about one channel.
  struct Channel {
    std::size_t bytes = 0;
    std::uint32_t wanted_engine = kAnyEngine;
    ModelId model{};              ///< whose engines serve it
    ChannelOwner owner;           ///< the domain is sent to each engine that gets the channel
    std::set<EngineKey> engines;  ///< none = the channel waits for an engine
  };
  /// Nothing if there is no such channel.
  std::optional<Channel> find(std::uint64_t id) const;
  /// Those that have channels.
  std::set<DomainId> domains() const;
  /// Adds an engine that can serve channels. Clients ask for it by `number`.
  void add_engine(EngineKey engine, std::uint32_t number, ProcessSlot slot, ModelId model = {});
  /// Removes an engine that is gone. The others are to be told of its death.
  /// \return  how many channels it had, and how many of these no engine has now
  struct Left {
    std::size_t had = 0, waiting = 0;
  };
  Left remove_engine(EngineKey engine);

  /// Tells engines what they are not told yet: which channels are closed, which are theirs, and of
  /// deaths. False = an engine could not be told everything, because its queue is full: call again
  /// soon. An engine that has not answered for kMostUnanswered channels is given no more.
  [[nodiscard]] bool tell_engines(EngineLine& line);

  /// The engine has taken or refused a channel that it was given. True = it was given none for want
  /// of answers: tell_engines() may have some for it.
  [[nodiscard]] bool answered(EngineKey engine);
  /// Whether the engine has not answered for a second: it is stopped, or hangs.
  bool is_silent(EngineKey engine) const;
  bool has_unanswered() const;

  /// A channel that is given carries descriptors, and the kernel limits how many descriptors of a
  /// user may be unread (strangers/unread_answers.hpp).
  static constexpr std::size_t kMostUnanswered = 8;
  static constexpr std::chrono::milliseconds kPatience{1000};

  /// Takes a channel from an engine that cannot serve it. False = no engine can.
  bool take_back(std::uint64_t id, EngineKey engine);

  /// Removes a channel. tell_engines() tells its engines. The channel's bytes count against the
  /// quotas until freed().
  /// \return  its memory, empty if it was not made yet; nothing if there is no such channel
  std::optional<ChannelMemory> close(std::uint64_t id);
  void freed(std::uint64_t id) { closed_.erase(id); }

  /// Bytes of channels whose memory is still being made, and of those that have theirs, or whose
  /// memory is still being freed.
  std::size_t bytes_to_make() const;
  std::size_t bytes_made() const;

  /// How many channels the engine serves.
  std::size_t load_of(EngineKey engine) const { return engines_.at(engine).channels; }

 private:
  struct Entry {
    Channel channel;
    /// Empty until it is made. The requests are open for reading: the client alone writes them.
    ChannelMemory memory;
    UniqueFd engine_bell;
    UniqueFd client_bell;  ///< the engine's end
    bool is_sealed = false, is_pinned = false;
    std::set<EngineKey> refused_by{};
    /// What only the client needs: its requests, open for writing, and its end of its bell.
    UniqueFd clients_requests, clients_bell;
    /// An earlier keeper may have given it to engines that are not noted.
    bool is_restored = false;
  };
  struct Engine {
    std::uint32_t number = 0;
    ProcessSlot slot{};
    ModelId model{};
    std::deque<std::uint64_t> to_open;    ///< channels to give to it; some are closed by now
    std::vector<std::uint64_t> to_close;  ///< channels that it was not told are closed
    bool knows_all_deaths = true;
    bool knows_channels = true;  ///< false = it may have some that are closed
    std::size_t channels = 0;    ///< that it has
    std::size_t unanswered = 0;  ///< channels that it was given and has not answered
    std::chrono::steady_clock::time_point silent_since{};  ///< if there are any
  };
  [[nodiscard]] Expected<void> check_quota(std::size_t bytes, const ChannelOwner& owner,
                                           const MachineMemory& machine) const;
  static bool tell_closed(EngineKey key, Engine& engine, EngineLine& line);
  bool tell_opened(EngineKey key, Engine& engine, EngineLine& line);
  static bool tell_of_deaths(EngineKey key, Engine& engine, EngineLine& line);
  bool tell_known(EngineKey key, Engine& engine, EngineLine& line) const;
  static bool is_for(const Channel& channel, const Engine& engine) {
    return channel.model == engine.model &&
           (channel.wanted_engine == kAnyEngine || channel.wanted_engine == engine.number);
  }
  bool may_have(const Entry& entry) const;
  void say_who_serves(const Entry& entry) const;

  ChannelQuota quota_;
  std::map<EngineKey, Engine> engines_;
  std::map<std::uint64_t, Entry> channels_;
  std::map<std::uint64_t, Channel> closed_;  ///< whose memory is being freed
  std::set<std::uint64_t> changed_;
  std::vector<UniqueFd> dropped_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvhive
