#pragma once
// The keeper: allocates the pool's memory, sends its descriptors to processes, watches the pidfd of
// every process, starts and restarts its children. It maps nothing but its ledger and computes
// nothing, so that little in it can go wrong. If it is killed, a successor goes on from the ledger.
// This class only routes: it decides which module (connections, supervisor, welcome, steward
// orders, channels, status) handles which event; and after each event it writes down what has
// changed, and then does what was decided (settle()).

#include <functional>
#include <memory>
#include <string>

#include "base/loop/event_loop.hpp"
#include "tools/keeper/channels/channel_maker.hpp"
#include "tools/keeper/channels/request_pinner.hpp"
#include "tools/keeper/channels/silent_engines.hpp"
#include "tools/keeper/connections.hpp"
#include "tools/keeper/succession/front.hpp"
#include "tools/keeper/succession/ledger.hpp"
#include "tools/keeper/succession/strays.hpp"
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
  [[nodiscard]] static Expected<std::unique_ptr<Keeper>> start(Estate& estate);

  /// What a killed keeper has written down, and what it had open beside that. To be read before
  /// anything else is opened.
  struct Legacy {
    std::unique_ptr<Ledger> ledger;
    Tables tables;
    Strays strays;
  };
  static Legacy read_legacy(const Estate& estate);
  /// Goes on from there.
  [[nodiscard]] static Expected<std::unique_ptr<Keeper>> resume(Estate& estate, Legacy legacy);
  ~Keeper() override;

  /// Serves until a stop signal comes (SIGTERM, SIGINT), or an engine cannot be started at all.
  /// `on_ready` is called once, when all engines serve.
  [[nodiscard]] Expected<void> run(const std::function<void()>& on_ready);

  const MadePool& pool() const { return tables_.pool; }
  const std::string& socket_path() const { return estate_.listener.path(); }

 private:
  Keeper(Estate& estate, Legacy legacy, EventLoop loop);
  [[nodiscard]] static Expected<std::unique_ptr<Keeper>> make(Estate& estate, Legacy legacy);
  /// False = a stop signal came meanwhile.
  [[nodiscard]] Expected<bool> prepare();
  [[nodiscard]] Expected<void> go_on();
  void go_on_with_channels();
  [[nodiscard]] Expected<void> keep_only_own_calls() const;
  static std::vector<std::string> steward_flags(const Estate& estate);
  void settle();
  void write_down();
  bool act();
  void send_due_welcome(int socket);
  void after_commit(std::function<void()> action) override {
    after_commit_.push_back(std::move(action));
  }
  void on_front_gone();
  [[nodiscard]] Expected<void> watch_signals();
  void on_stop_signal();
  void on_hangup_signal();
  void on_gpu_memory_lost();

  void on_packet(Peer& peer, Packet packet) override;
  void on_gone(const Peer& peer) override;
  void on_child_end(const Child& child, pid_t pid) override;
  std::optional<int> end_of_orphan(pid_t pid) override {
    return estate_.ledger.head().orphans.status_of(pid);
  }
  void on_made(std::uint64_t channel, Expected<ChannelMemory> memory) override;
  void on_freed(std::uint64_t channel) override;
  void on_pinned(std::uint64_t channel, Expected<void> result) override;
  // Each handles a packet from one kind of sender. False = this kind may not send such a packet.
  bool on_steward_packet(const Packet& packet);
  bool on_engine_packet(Peer& peer, const Packet& packet);
  bool on_inspector_packet(Peer& peer, const Packet& packet);
  bool on_client_packet(Peer& peer, const Packet& packet);
  void take_order(Peer& asker, const Order& order, std::string_view tail);
  void reload(Peer& asker, const Order& order, std::string_view tail);
  void send_options(const Peer& child);
  void hand_over(Peer& asker, const Order& order, std::string_view tail);
  void end_hand_over();
  [[noreturn]] static void leave();

  void on_hello(Peer& peer, Packet hello);
  void send_status(Peer& peer, std::uint64_t ticket);
  void check_ready();
  void on_engine_gone(const Peer& peer);
  void on_steward();
  void expect_sweep(std::uint32_t slot);
  void expect_sweeps();
  void make_channel(Peer& client);
  void on_channel_refused(const Peer& engine, const ChannelRefused& message);
  void tell_engines();
  void try_again_soon();
  void refuse_clients_of(std::uint32_t engine);
  void expect_repair(std::uint64_t ticket);
  void expect_answers();
  bool is_another_serving(const Peer& engine) const;
  void close_channel(const Peer& client);
  void end_guests();

  Estate& estate_;
  EventLoop loop_;
  UniqueFd stop_signals_, hangup_signals_;  ///< signalfds
  Tables tables_;
  std::unique_ptr<Ledger> ledger_;
  Strays strays_;
  std::vector<std::function<void()>> after_commit_;
  Connections connections_;
  Supervisor supervisor_;
  EngineSockets engine_line_;
  SilentEngines silent_engines_;
  RequestPinner pinner_;
  bool options_are_due_ = false;       ///< children are to be told those that may change
  bool hands_over_ = false;            ///< once that is written down, another program goes on
  bool end_of_child_is_known_ = true;  ///< of the one that on_child_end() tells of
  bool expects_answers_ = false;       ///< a timer is set that looks for engines that do not answer
  bool tells_again_soon_ = false;      ///< a timer is set that does it
  std::function<void()> on_ready_;
  ChannelMaker maker_;  ///< the last member, so that its thread ends before what it uses
};

}  // namespace kvhive
