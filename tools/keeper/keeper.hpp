#pragma once
// The keeper: allocates the pool's memory, sends its descriptors to processes, watches the pidfd of
// every process, starts and restarts its children. It maps nothing and computes nothing, so that
// little in it can go wrong. Every other process may die; the daemon ends with the keeper. This
// class only routes: it decides which module (connections, supervisor, welcome, steward orders,
// channels, status) handles which event.

#include <functional>
#include <memory>
#include <string>

#include "base/loop/event_loop.hpp"
#include "config/process_limits.hpp"
#include "ipc/listener.hpp"
#include "tools/keeper/channels/channel_maker.hpp"
#include "tools/keeper/channels/request_pinner.hpp"
#include "tools/keeper/connections.hpp"
#include "tools/keeper/supervisor.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

class Keeper : private Connections::Events,
               private Supervisor::Events,
               private ChannelMaker::Events,
               private RequestPinner::Events {
 public:
  /// Starts the steward and makes the pool. Null = a stop signal came meanwhile. On an error, no
  /// file, memory or process is left behind.
  [[nodiscard]] static Expected<std::unique_ptr<Keeper>> start(const Options& options);
  ~Keeper() override;

  /// Serves until a stop signal comes (SIGTERM, SIGINT), or an engine cannot be started at all.
  /// `on_ready` is called once, when all engines serve.
  [[nodiscard]] Expected<void> run(const std::function<void()>& on_ready);

  const MadePool& pool() const { return tables_.pool; }
  const std::string& socket_path() const { return listener_.path(); }

 private:
  Keeper(const Options& options, const ProcessLimits& limits, Domains domains, Listener listener,
         EventLoop loop);
  /// False = a stop signal came meanwhile.
  [[nodiscard]] Expected<bool> prepare();
  [[nodiscard]] Expected<void> watch_signals();
  void on_stop_signal();
  void on_hangup_signal();
  void on_gpu_memory_lost();

  void on_packet(Peer& peer, Packet packet) override;
  void on_gone(const Peer& peer) override;
  void on_child_end(const Child& child, pid_t pid) override;
  void on_made(std::uint64_t channel, Expected<ChannelMemory> memory) override;
  void on_freed(std::uint64_t channel) override;
  void on_pinned(std::uint64_t channel, Expected<void> result) override;
  // Each handles a packet from one kind of sender. False = this kind may not send such a packet.
  bool on_steward_packet(const Packet& packet);
  bool on_engine_packet(Peer& peer, const Packet& packet);
  bool on_inspector_packet(Peer& peer, const Packet& packet);
  bool on_client_packet(Peer& peer, const Packet& packet);

  void on_hello(Peer& peer, Packet hello);
  void send_status(Peer& peer);
  void check_ready();
  void on_engine_gone(const Peer& peer);
  void on_steward();
  void expect_sweep(std::uint32_t slot);
  void make_channel(Peer& client);
  void on_channel_refused(const Peer& engine, const ChannelRefused& message);
  void tell_engines();
  void expect_answers();
  void close_channel(const Peer& client);
  void end_guests();

  Listener listener_;
  EventLoop loop_;
  UniqueFd stop_signals_, hangup_signals_;  ///< signalfds
  Tables tables_;
  Connections connections_;
  Supervisor supervisor_;
  EngineSockets engine_line_;
  RequestPinner pinner_;
  bool expects_answers_ = false;   ///< a timer is set that looks for engines that do not answer
  bool tells_again_soon_ = false;  ///< a timer is set that does it
  std::function<void()> on_ready_;
  ChannelMaker maker_;  ///< the last member, so that its thread ends before what it uses
};

}  // namespace kvhive
