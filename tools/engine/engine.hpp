#pragma once
// A running engine: the pool, the ring of actors over it, and the line to the keeper.

#include <memory>

#include "actors/port.hpp"
#include "actors/ring.hpp"
#include "config/event_loop.hpp"
#include "config/options.hpp"
#include "models/transformer.hpp"
#include "pool/block_pool.hpp"
#include "tools/keeper/protocol.hpp"

namespace kvhive {

class Engine {
 public:
  /// Loads the model and attaches to the daemon's pool.
  static Expected<std::unique_ptr<Engine>> attach(const Options& options, const ModelConfig& config,
                                                  std::uint32_t index);

  /// Serves until the keeper is gone, which ends the process.
  void run();

 private:
  Engine(const Options& options, const ModelConfig& config, const Message& welcome, EventLoop loop,
         UniqueFd socket, PoolMemory memory, Tokenizer tokenizer, Transformer model);
  void on_keeper();
  void open_channel(Packet& packet);
  void refuse_channel(std::uint64_t channel, const Error& error);

  std::uint32_t index_;
  ProcessSlot slot_;
  EventLoop loop_;
  UniqueFd socket_;
  PoolMemory memory_;
  Tokenizer tokenizer_;
  std::unique_ptr<BlockPool> pool_;
  ActorConfig actor_config_;
  caf::actor_system system_{actor_config_};
  std::unique_ptr<Port> port_;  ///< last: its handle must be gone before the system goes
};

}  // namespace kvhive
