#pragma once
// The keeper: creates the pool's memory, hands it out, watches everybody's pidfd, starts and
// restarts the others. It maps nothing and computes nothing, so that there is little in it that
// could go wrong; everything else may die.

#include <fcntl.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "config/options.hpp"
#include "config/sizing.hpp"
#include "tools/keeper/child.hpp"
#include "tools/keeper/listener.hpp"
#include "tools/keeper/protocol.hpp"
#include "tools/keeper/slot_owners.hpp"

namespace kvhive {

/// What `kvhive-engine --describe` says of a model.
struct ModelFacts {
  std::string name;
  std::uint64_t fingerprint = 0;
  KvLayout layout;
  std::uint32_t positions = 0;
  std::size_t weight_bytes = 0;
  std::size_t engine_peak = 0;  ///< 0 without a profile run
};

class Keeper {
 public:
  /// Describes the model, sizes and creates the pool, starts the processes. Nothing is left behind
  /// on an error.
  static Expected<std::unique_ptr<Keeper>> start(const Options& options);
  ~Keeper();

  /// Serves until a stop signal comes (SIGTERM, SIGINT), or an engine cannot be started at all.
  /// `on_ready` is called once, when all engines are attached.
  Expected<void> run(const std::function<void()>& on_ready);

  const PoolSize& size() const { return size_; }
  const ModelFacts& model() const { return model_; }
  const std::string& socket_path() const { return listener_.path(); }

 private:
  enum class SlotUse : std::uint8_t { vacant, used, unswept };

  /// Somebody at the other end of a connection.
  struct Peer {
    UniqueFd socket;
    UniqueFd pidfd;  ///< of a peer we did not start ourselves
    pid_t pid = 0;
    bool is_welcome = false;  ///< has said an acceptable hello
    Role role = Role::client;
    std::uint32_t engine = kAnyEngine;  ///< its own number, or for a client the one it wants
    std::uint32_t slot = 0;
    std::uint64_t channel = 0;
  };
  struct Watch {
    std::uint32_t number = 0;
    std::function<void()> on_ready;
  };
  struct Channel {
    UniqueFd memory;
    UniqueFd doorbell;  ///< the engine's end; the client's is the client's
    std::size_t bytes = 0;
    std::uint32_t wanted_engine = kAnyEngine;
    int client = -1;  ///< socket
    int engine = -1;  ///< socket; -1 = waits for an engine
  };

  Keeper(const Options& options, Listener listener, ModelFacts model, PoolSize size, PoolFds pool);
  Expected<void> prepare();
  PoolGeometry geometry() const;

  void watch(int fd, std::function<void()> on_ready);
  void unwatch(int fd);
  void dispatch(std::uint64_t event);

  void accept();
  void turn_away();
  void on_packet(int socket);
  void handle(Peer& peer, Packet packet);
  void refuse(Peer& peer, const Error& error);
  void drop(int socket);
  void fence(const Peer& peer);

  void hello(Peer& peer, Packet& packet);
  Expected<void> welcome_engine(Peer& peer, const Message& hello);
  Expected<void> welcome_steward(Peer& peer);
  Expected<void> welcome_client(Peer& peer, const Message& hello);
  Expected<void> welcome_inspector(Peer& peer, const Message& hello);
  Expected<void> send_welcome(Peer& peer, Message message, const std::vector<PoolObject>& objects,
                              bool read_only);

  void start_child(Child& child);
  void on_child_death(Child& child);
  void restart_later(Child& child);
  void wake_in(std::chrono::milliseconds pause);
  void look_again_soon();
  Child* child_of(pid_t pid);
  void start_engines();

  void request_repair(Peer& peer);
  void answer_repair(const Packet& done);
  void give_up_repairs();

  void on_engine_gone(Peer& peer);
  void sweep(std::uint32_t slot);
  void place_channels();
  void place(std::uint64_t id, Channel& channel);
  void close_channel(std::uint64_t id);
  std::size_t load_of(int engine_socket) const;
  Peer* peer_with_role(Role role);
  SlotOwners slot_owners() const;
  std::string status() const;
  void stop_children();

  Options options_;
  Listener listener_;
  ModelFacts model_;
  PoolSize size_;
  PoolFds pool_;

  UniqueFd epoll_, signals_, restart_timer_;
  std::map<int, Watch> watched_;  ///< by descriptor
  std::uint32_t next_watch_ = 0;
  UniqueFd spare_{
      open("/dev/null", O_RDONLY | O_CLOEXEC)};  ///< to hang up with when there is none left
  std::map<int, Peer> peers_;                    ///< by socket
  Child steward_;
  std::vector<Child> engines_;
  std::set<Child*> to_restart_;
  std::array<SlotUse, kMaxProcesses> slots_{};
  /// By ticket: the socket that asked, or -1 if it is gone. No slot is given away meanwhile.
  std::map<std::uint64_t, int> repairs_;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, Channel> channels_;
  std::uint64_t next_channel_ = 1;
  bool is_formatted_ = false;
  bool is_ready_ = false;
  bool is_running_ = true;
  Error fatal_;
};

}  // namespace kvhive
