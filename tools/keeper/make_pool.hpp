#pragma once
// Makes the pool: finds out what the model needs, sizes the pool, and allocates its memory. Runs
// once, before the daemon serves anything.

#include <optional>

#include "config/pool_geometry.hpp"
#include "config/resolved_options.hpp"
#include "config/sizing.hpp"
#include "tools/keeper/gpu_memory_maker.hpp"
#include "tools/keeper/model_facts.hpp"

namespace kvhive {

/// The pool that the keeper hands out. The keeper itself maps none of it.
struct MadePool {
  ModelFacts model;
  PoolSize size;
  PoolGeometry geometry;
  PoolFds objects;
  UniqueFd gpu_weights;       ///< only on a GPU
  GpuMemoryMaker gpu_memory;  ///< running only if the GPU's memory needs its maker

  bool is_on_gpu() const { return geometry.device == DeviceKind::cuda; }
};

/// \param options  what the model and the machine decide is filled in
/// \param stop     a descriptor; when it can be read, the work is given up
/// \return  nothing if `stop` could be read
/// Errors: too little memory, a model that cannot be read, ...; nothing is left behind.
[[nodiscard]] Expected<std::optional<MadePool>> make_pool(ResolvedOptions& options, int stop);

}  // namespace kvhive
