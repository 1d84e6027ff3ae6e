#pragma once
// What the keeper knows of the model. It asks an engine process for it, because the keeper reads no
// model files.

#include <cstdint>
#include <optional>
#include <string>

#include "base/expected.hpp"
#include "config/cache_groups.hpp"
#include "config/kv_layout.hpp"
#include "config/options.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

/// What `kvhive-engine --describe` prints about a model (tools/engine/describe.hpp).
struct ModelFacts {
  std::string name;
  std::uint64_t fingerprint = 0;
  KvLayout layout;
  CacheGroups groups;
  std::uint32_t positions = 0;
  std::size_t weight_bytes = 0;
  std::size_t engine_peak = 0;          ///< bytes, as the profile run measured, or about
  std::uint32_t max_model_len = 0;      ///< tokens of a sequence; set when the pool is sized
  DeviceKind device = DeviceKind::cpu;  ///< where engines compute
  std::string device_reason;            ///< the GPU's name, or why there is none
  CpuKernels cpu_kernels{};             ///< as in PoolGeometry
  struct Gpu {
    std::size_t total = 0;
    std::size_t available = 0;
    std::string name;
    std::string uuid;
    bool memory_needs_its_maker = false;  ///< from DeviceFacts (device/device.hpp)
    std::string sharing_reason;
  } gpu;  ///< set if `device` is cuda
};

enum class Depth : std::uint8_t {
  config,   ///< what follows from config.json
  profile,  ///< and a profile run, if the pool's size depends on one
};
/// Runs `kvhive-engine --describe` and reads its output.
///
/// \param threads  the most that an engine computes with: a step's memory grows with them
/// \return  nothing if `stop` became readable first
[[nodiscard]] Expected<std::optional<ModelFacts>> describe_model(const Options& options,
                                                                 std::uint32_t threads, int stop,
                                                                 Depth depth);

}  // namespace kvhive
