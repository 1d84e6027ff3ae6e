#pragma once
// Where a daemon's engines run, so that they do not get into each other's way.

#include <optional>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "config/cpu_bind.hpp"
#include "config/machine/processor_quota.hpp"
#include "tools/placement/processor_map.hpp"

namespace kvhive {

struct EnginePlaces {
  std::vector<EnginePlace> engines;
  std::string reason;  ///< why none is bound, though it may be (CpuBind::Way::automatic)
};

/// \param threads  compute threads of each engine; 0 = its cores, or its part of them, within the
///                 quota
/// Errors: a list names a processor that this process may not run on.
[[nodiscard]] Expected<EnginePlaces> place_engines(const CpuBind& bind, std::uint32_t engines,
                                                   std::uint32_t threads, const ProcessorMap& map,
                                                   const std::optional<ProcessorQuota>& quota);

/// The memory nodes of a machine with several that these engines are near to; empty = it has one.
NodeList nodes_for(const std::vector<EnginePlace>& engines, const ProcessorMap& map);

}  // namespace kvhive
