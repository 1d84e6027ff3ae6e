#pragma once
// What the keeper knows of the model. An engine measures it, because the keeper reads no model
// files.

#include <cstdint>
#include <optional>
#include <string>

#include "base/expected.hpp"
#include "config/kv_layout.hpp"
#include "config/options.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

/// What `kvhive-engine --describe` says of a model (tools/engine/describe.hpp).
struct ModelFacts {
  std::string name;
  std::uint64_t fingerprint = 0;
  KvLayout layout;
  std::uint32_t positions = 0;
  std::size_t weight_bytes = 0;
  std::size_t engine_peak = 0;          ///< 0 without a profile run
  DeviceKind device = DeviceKind::cpu;  ///< where engines compute
  std::string device_reason;            ///< the GPU's name, or why there is none
  struct Gpu {
    std::size_t total = 0;
    std::size_t available = 0;
    std::string name;
    std::string uuid;
    bool memory_needs_its_maker = false;  ///< as DeviceFacts has it
    std::string sharing_reason;
  } gpu;  ///< if `device` is cuda
};

/// Runs that engine to its end, with a profile run if the pool's size depends on one.
/// \return  nothing if `stop` could be read before
[[nodiscard]] Expected<std::optional<ModelFacts>> describe_model(const Options& options, int stop);

}  // namespace kvhive
