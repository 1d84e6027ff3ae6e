#pragma once
// Makes the pool: finds out what the model needs, sizes the pool, and allocates its memory. Runs
// once, before the daemon serves requests.

#include <optional>
#include <string>
#include <vector>

#include "config/pool_geometry.hpp"
#include "config/resolved_options.hpp"
#include "config/sizing.hpp"
#include "tools/keeper/domains.hpp"
#include "tools/keeper/gpu_memory_maker.hpp"
#include "tools/keeper/model_facts.hpp"

namespace kvhive {

/// The pool: what it is for, its size, and its memory's descriptors, which the keeper sends to
/// processes. The keeper itself maps none of the memory.
struct MadePool {
  std::vector<ModelFacts> models;  ///< by ModelId
  PoolSize size;
  PoolGeometry geometry;
  PoolFds objects;
  UniqueFd board;                     ///< what engines know of each other (ipc/channel/board.hpp)
  std::vector<UniqueFd> gpu_weights;  ///< by ModelId, in GPU memory; empty on the CPU
  GpuMemoryMaker gpu_memory;  ///< runs only if the driver frees the GPU's memory when it ends

  /// What is known of the device with each model.
  const ModelFacts& device_facts() const { return models.front(); }
  /// Of all models, with ", " between them.
  std::string names() const;
  /// The model of this name; nothing if there is none.
  std::optional<ModelId> find(const std::string& name) const;
  bool is_on_gpu() const { return geometry.device == DeviceKind::cuda; }
};

/// \param options  make_pool() fills in the values that the model and the machine decide
/// \param domains  which have a share of the blocks
/// \param stop     a descriptor; when it becomes readable, make_pool() gives up
/// \return  nothing if `stop` became readable. Errors: too little memory, a model that cannot be
///          read, and others; no memory or process is left behind
[[nodiscard]] Expected<std::optional<MadePool>> make_pool(ResolvedOptions& options,
                                                          const Domains& domains, int stop);

}  // namespace kvhive
