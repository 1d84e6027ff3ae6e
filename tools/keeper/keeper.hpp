#pragma once
// The keeper: creates the pool's memory, hands it out, watches everybody's pidfd, starts and
// restarts the others. It maps nothing and computes nothing, so that there is little in it that
// could go wrong; everything else may die.

#include <fcntl.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/event_loop.hpp"
#include "config/options.hpp"
#include "config/resolved_options.hpp"
#include "config/sizing.hpp"
#include "ipc/listener.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/channels.hpp"
#include "tools/keeper/child.hpp"
#include "tools/keeper/domains.hpp"
#include "tools/keeper/gpu_memory_maker.hpp"
#include "tools/keeper/model_facts.hpp"
#include "tools/program/slot_owners.hpp"

namespace kvhive {

class Keeper {
 public:
  /// Starts the steward, describes the model, sizes and creates the pool. Nothing is left behind on
  /// an error. Null = a stop signal came meanwhile.
  static Expected<std::unique_ptr<Keeper>> start(const Options& options);
  ~Keeper();

  /// Serves until a stop signal comes (SIGTERM, SIGINT), or an engine cannot be started at all.
  /// `on_ready` is called once, when all engines serve.
  Expected<void> run(const std::function<void()>& on_ready);

  const PoolSize& size() const { return size_; }
  const ModelFacts& model() const { return model_; }
  const std::string& socket_path() const { return listener_.path(); }

 private:
  enum class Role : std::uint8_t { engine, steward, client, inspector };
  enum class SlotUse : std::uint8_t { vacant, used, unswept };

  /// Somebody at the other end of a connection.
  struct Peer {
    UniqueFd socket;
    UniqueFd pidfd;  ///< of a peer we did not start ourselves
    pid_t pid = 0;   ///< in our PID namespace; 0 = it lives in one that we cannot see into
    uid_t uid = 0;
    bool is_welcome = false;  ///< has said an acceptable hello
    bool is_serving = false;  ///< an engine that others can see in the pool
    Role role = Role::client;
    std::uint32_t engine = kAnyEngine;  ///< its own number, or for a client the one it wants
    std::uint32_t slot = 0;
    std::uint64_t channel = 0;

    bool has_role(Role wanted) const { return is_welcome && role == wanted; }
  };

  Keeper(const Options& options, Domains domains, Listener listener, EventLoop loop);
  // False = a stop signal came meanwhile.
  Expected<bool> prepare();
  Expected<bool> make_pool();
  Expected<bool> take_gpu_memory(std::size_t arena_bytes);
  bool is_on_gpu() const { return model_.device == DeviceKind::cuda; }
  Expected<void> watch_signals();
  PoolGeometry geometry() const;

  void accept();
  bool has_room_for(const Peer& peer) const;
  void turn_away(UniqueFd socket);
  void on_packet(int socket);
  void handle(Peer& peer, Packet packet);
  void refuse(Peer& peer, const Error& error);
  void hang_up(Peer& peer);
  void drop(int socket);
  void fence(const Peer& peer);

  // In welcome.cpp.
  void hello(Peer& peer, Packet& packet);
  Expected<void> welcome(Peer& peer, const Packet& hello);
  Expected<void> welcome_engine(Peer& peer, const EngineHello& hello);
  Expected<void> welcome_steward(Peer& peer);
  Expected<void> welcome_client(Peer& peer, const ClientHello& hello);
  Expected<void> welcome_inspector(Peer& peer, const InspectorHello& hello);
  template <class Welcome>
  Expected<void> send_welcome(Peer& peer, Welcome message, const std::vector<PoolObject>& objects,
                              bool read_only);

  void start_steward();
  void prepare_engines();
  void start_engines();
  void start_child(Child& child);
  void on_child_death(Child& child);
  bool is_guest(const Peer& peer) const;
  void end_guests();
  void on_gpu_memory_lost();
  void restart_later(Child& child);
  const Child* child_of(pid_t pid) const;
  bool has_engine(std::uint32_t number) const;
  Expected<std::uint32_t> number_of_guest(std::uint32_t wanted) const;
  void stop_children();

  void request_repair(Peer& peer);
  void answer_repair(const Packet& done);
  void give_up_repairs();

  void look_whether_ready();
  void on_engine_gone(const Peer& peer);
  void on_lost_device(const Peer& engine);
  void sweep(std::uint32_t slot);
  void place_channels();
  void close_channel(std::uint64_t id);
  void on_channel_refused(const Peer& engine, const ChannelRefused& message);
  Peer* peer_with_role(Role role);
  SlotOwners slot_owners() const;
  std::string status(const Peer& asker);

  Options options_;
  ResolvedOptions resolved_;  ///< complete once the pool is made
  Domains domains_;
  Listener listener_;
  ModelFacts model_;
  PoolSize size_;
  PoolFds pool_;
  UniqueFd gpu_weights_;
  GpuMemoryMaker gpu_memory_;

  EventLoop loop_;
  UniqueFd signals_;
  /// To turn somebody away with when there is none left.
  UniqueFd spare_{open("/dev/null", O_RDONLY | O_CLOEXEC)};
  std::map<int, Peer> peers_;  ///< by socket
  Child steward_;
  std::vector<Child> engines_;
  std::array<SlotUse, kMaxProcesses> slots_{};
  std::array<bool, kMaxProcesses> drops_unheld_{};  ///< when the slot is swept
  EngineSockets engine_line_;
  Channels channels_;  ///< engines by socket
  bool places_again_soon_ = false;
  /// By ticket: the socket that asked, or -1 if it is gone. No slot is given away meanwhile.
  std::map<std::uint64_t, int> repairs_;
  std::uint64_t next_ticket_ = 1;
  bool is_formatted_ = false;
  bool is_ready_ = false;
  std::function<void()> on_ready_;
  Error fatal_;
};

}  // namespace kvhive
