#pragma once
// Decode steps as CUDA graphs: one call starts the hundreds of kernels of a step. A graph contains
// the arguments and grids of its kernels, so it can be used for steps of one shape: the same
// numbers of rows and of pieces of attention. These numbers are rounded up so that few shapes occur
// (gpu_step.hpp).
//
// A shape is recorded when it occurs for the second time. By then products have chosen their
// algorithms and allocated memory, neither of which may happen while recording; and a shape that
// occurs once costs nothing.
//
// Source: vLLM's CUDA graphs (padded batch sizes). Here a graph contains attention, too.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "base/expected.hpp"
#include "config/kv_layout.hpp"
#include "device/device.hpp"
#include "kernels/cuda/split_plan.hpp"

namespace kvhive {

/// Everything that decides which kernels a decode step starts, and with which arguments.
struct DecodeShape {
  std::int32_t rows = 0;              ///< T, B and n
  std::int32_t blocks = 0;            ///< M
  std::int32_t likeliest = 0;         ///< K
  bool is_adapted = false;            ///< some row has an adapter
  std::vector<PlanCounts> attention;  ///< one for each kind of layers
  std::byte* kv_base = nullptr;       ///< address of the arena, which a graph contains
  KvLayout layout;

  friend bool operator==(const DecodeShape&, const DecodeShape&) = default;
};

class DecodeGraphs {
 public:
  /// Puts a step's work on the stream. The same shape must give the same work.
  using Queue = std::function<Expected<void>()>;

  /// \param device outlives this
  /// \param most shapes remembered, the least recently used are forgotten; 0: no graphs
  DecodeGraphs(Device& device, std::size_t most) : device_(device), most_(most) {}
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;
  /// No graph may be running.
  ~DecodeGraphs() { forget_all(); }

  /// Runs a step, by a graph if there is one for its shape. After the device has failed to record
  /// or start a graph, no more are used.
  [[nodiscard]] Expected<void> run(const DecodeShape& shape, DeviceStream stream,
                                   const Queue& queue);

 private:
  struct Known {
    DecodeShape shape;
    DeviceGraph graph = nullptr;  ///< null: has occurred once
  };

  Known* find(const DecodeShape& shape);
  void remember(const DecodeShape& shape);
  [[nodiscard]] Expected<DeviceGraph> record(DeviceStream stream, const Queue& queue);
  [[nodiscard]] Expected<void> run_without_graphs(const Error& error, const Queue& queue);
  void forget_all();

  Device& device_;
  std::size_t most_;
  std::list<Known> known_;  ///< most recently used first
};

}  // namespace kvhive
