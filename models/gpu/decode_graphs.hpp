#pragma once
// Decode steps as graphs: the hundreds of kernels of a step are started by one call. A graph has
// recorded how its kernels are started, so it serves steps of one shape: the numbers of rows and of
// pieces of attention, which are rounded up for that (gpu_step.hpp).
//
// A shape is recorded when it comes up for the second time: by then products have chosen their
// algorithms and memory is allocated, which must not happen while recording; and what never comes
// again costs nothing.
//
// Source: vLLM's CUDA graphs (padded batch sizes), but one graph holds attention, too.

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

/// All that makes two decode steps start different kernels, or the same ones differently.
struct DecodeShape {
  std::int32_t rows = 0;              ///< T, B and n
  std::int32_t blocks = 0;            ///< M
  std::int32_t likeliest = 0;         ///< K
  std::vector<PlanCounts> attention;  ///< for each window
  std::byte* kv_base = nullptr;       ///< a graph has the arena's address in it
  KvLayout layout;

  friend bool operator==(const DecodeShape&, const DecodeShape&) = default;
};

class DecodeGraphs {
 public:
  /// Puts a step's work on the stream, the same for the same shape.
  using Queue = std::function<Expected<void>()>;

  /// \param most  shapes remembered, those used last; 0: nothing is recorded
  /// \param device  outlives this
  DecodeGraphs(Device& device, std::size_t most) : device_(device), most_(most) {}
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;
  /// None of them is under way.
  ~DecodeGraphs() { forget_all(); }

  /// Queues a step. A device that cannot record or start one does without graphs from then on.
  [[nodiscard]] Expected<void> run(const DecodeShape& shape, DeviceStream stream,
                                   const Queue& queue);

 private:
  struct Known {
    DecodeShape shape;
    DeviceGraph graph = nullptr;  ///< null: came up once
  };

  Known* find(const DecodeShape& shape);
  void remember(const DecodeShape& shape);
  [[nodiscard]] Expected<DeviceGraph> record(DeviceStream stream, const Queue& queue);
  [[nodiscard]] Expected<void> go_on_without(const Error& error, const Queue& queue);
  void forget_all();

  Device& device_;
  std::size_t most_;
  std::list<Known> known_;  ///< the one used last in front
};

}  // namespace kvhive
