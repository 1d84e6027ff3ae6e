#pragma once
// A running engine: the attached pool, the ring of actors that uses it, and the connection to the
// keeper.

#include <atomic>
#include <memory>
#include <vector>

#include "actors/port.hpp"
#include "actors/ring.hpp"
#include "base/loop/event_loop.hpp"
#include "config/options.hpp"
#include "ipc/channel/bell_ringers.hpp"
#include "ipc/protocol.hpp"
#include "models/transformer.hpp"
#include "pool/block_pool.hpp"
#include "tools/engine/gpu.hpp"

namespace kvhive {

class Engine {
 public:
  /// Loads the model and attaches to the daemon's pool.
  /// \param device  the GPU to compute on; null = on the CPU
  [[nodiscard]] static Expected<std::unique_ptr<Engine>> attach(const Options& options,
                                                                const ModelConfig& config,
                                                                std::uint32_t index, pid_t keeper,
                                                                std::unique_ptr<Device> device);

  /// Serves until the keeper is gone, which ends the process.
  void run();

 private:
  /// The parts of the ring that do a step's work.
  struct Computing {
    std::unique_ptr<Swapper> swapper;
    std::unique_ptr<StepRunner> runner;
  };

  Engine(const EngineWelcome& welcome, Board board, EventLoop loop, UniqueFd socket,
         PoolMemory memory, Tokenizer tokenizer);
  [[nodiscard]] Expected<Computing> compute_on_cpu(Transformer model);
  [[nodiscard]] Expected<Computing> compute_on_gpu(std::unique_ptr<Device> device,
                                                   const Options& options,
                                                   const ModelConfig& config, const PoolFds& fds,
                                                   const std::vector<UniqueFd>& more);
  void start(const Options& options, const ModelConfig& config, Computing computing);
  void on_keeper();
  void drain();
  void set_limits(const Limits& limits);
  void set_shares(std::string_view shares);
  [[noreturn]] static void end_without_keeper();
  [[nodiscard]] Expected<std::unique_ptr<ClientRing>> ring_for(const ChannelOpen& message,
                                                               UniqueFd client_bell);
  void close_unknown_channels(std::string_view numbers);
  void open_channel(const ChannelOpen& message, Packet& packet);
  void refuse_channel(std::uint64_t channel, const Error& error);

  Member self_;
  std::atomic<bool> is_draining_{false};
  ProcessSlot slot_;
  std::uint32_t pid_;  ///< this process's pid in the keeper's PID namespace
  EventLoop loop_;
  UniqueFd socket_;
  PoolMemory memory_;
  Tokenizer tokenizer_;
  std::unique_ptr<GpuParts> gpu_;
  std::unique_ptr<BlockPool> pool_;
  BellRingers ringers_;
  ActorConfig actor_config_;
  caf::actor_system system_{actor_config_};
  std::unique_ptr<Port> port_;  ///< the last member, so that it is destroyed before system_
};

}  // namespace kvhive
