#pragma once
// How the processors lie that this process may run on: which of them are one core, and which memory
// is near. A core with several processors (hyper-threads) computes hardly more than one of them.
//
// Source: hwloc (affinity, cpusets, /sys).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "config/cpu_bind.hpp"

struct hwloc_topology;

namespace kvhive {

/// Numbers of memory nodes, as in /sys/devices/system/node.
using NodeList = std::vector<std::uint32_t>;

/// Move-only.
class ProcessorMap {
 public:
  [[nodiscard]] static Expected<ProcessorMap> of_this_process();
  /// A machine made up, in hwloc's words: "numa:2 core:8 pu:2".
  [[nodiscard]] static Expected<ProcessorMap> made_up(const std::string& machine);

  ProcessorList processors() const;
  std::uint32_t cores() const;
  /// Cores that have a processor in the list.
  std::uint32_t cores_of(const ProcessorList& list) const;
  /// The memory nodes that processors of the list are near to.
  NodeList nodes_of(const ProcessorList& list) const;
  ProcessorList processors_near(std::uint32_t node) const;

  /// So many parts, as even as nodes and caches allow, each of whole cores that lie near each
  /// other, no core in two.
  /// \pre `parts` is in [1, cores()]
  std::vector<ProcessorList> split(std::uint32_t parts) const;

 private:
  struct Destroy {
    void operator()(hwloc_topology* topology) const;
  };
  using Handle = std::unique_ptr<hwloc_topology, Destroy>;
  explicit ProcessorMap(Handle handle) : handle_(std::move(handle)) {}
  [[nodiscard]] static Expected<ProcessorMap> load(Handle handle);

  Handle handle_;
};

}  // namespace kvhive
