#pragma once
// A step as a GpuTransformer queues it: everything its kernels read is laid out in one stretch of
// host memory, copied in one piece, and known by its place on the device.
//
// Decode steps, one token of each sequence, are made alike: rows are padded to a usual number
// (they write to no slot, attend to nothing, and nobody looks at what they choose), block
// tables are widened and attention's plan is padded, so that a graph can serve many steps.
// That changes no row's bits, except through products of the device, which may choose their
// algorithm by the number of rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/sampling.hpp"
#include "models/forward_batch.hpp"
#include "models/gpu/decode_graphs.hpp"
#include "models/gpu/gpu_limits.hpp"

namespace kvhive {

/// Fills the staging area part by part; what is at an offset there will be at the same one on the
/// device.
class StepInputs {
 public:
  StepInputs(std::byte* host, const std::byte* device, std::size_t capacity)
      : host_(host), device_(device), capacity_(capacity) {}

  /// Rows of `width` values, each widened to `room`; then more rows, up to `rows`.
  /// \returns where it will be on the device
  template <class T>
  const T* add_rows(std::span<const T> values, std::size_t width, std::size_t rows,
                    std::size_t room, const T& filler) {
    T* const part = take<T>(rows * room);
    const std::size_t given = width == 0 ? 0 : values.size() / width;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t copied = row < given ? width : 0;
      std::copy_n(values.data() + (copied == 0 ? 0 : row * width), copied, part + row * room);
      std::fill_n(part + row * room + copied, room - copied, filler);
    }
    return on_device(part);
  }
  template <class T>
  const T* add(std::span<const T> values, std::size_t rows, const T& filler = {}) {
    return add_rows(values, 1, rows, 1, filler);
  }
  template <class T>
  const T* add(const std::vector<T>& values) {
    return add(std::span<const T>(values), values.size());
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* take(std::size_t bytes);
  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(take(count * sizeof(T)));
  }
  template <class T>
  const T* on_device(const T* part) const {
    return reinterpret_cast<const T*>(device_ + (reinterpret_cast<const std::byte*>(part) - host_));
  }

  std::byte* host_;
  const std::byte* device_;
  std::size_t capacity_;
  std::size_t bytes_ = 0;
};

/// What a plan has to know of the model and its memory.
struct StepContext {
  PagedAttentionArgs attention;  ///< of layer 0, without a batch
  std::span<const std::int32_t> windows;
  GpuLimits limits;
  float* states = nullptr;  ///< on the device, for most_states of them
  std::int32_t most_states = 0;
  std::byte* kv_base = nullptr;  ///< as start() has them
  KvLayout layout;
};

/// What the kernels of one step share, on the device.
struct GpuStep {
  std::int32_t T = 0, n = 0, K = 0;
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int64_t* slot_mapping = nullptr;
  const BlockId* block_table = nullptr;
  const std::int32_t* logit_rows = nullptr;
  const SampleChoice* choices = nullptr;
  std::int32_t B = 0, M = 0;
  /// For each window attention in as many calls as it takes, lest its states outgrow their room.
  std::vector<std::vector<AttentionWork>> attention;
  /// Of a decode step that attends in one call for each window.
  std::optional<DecodeShape> shape;
};

GpuStep plan_step(const StepContext& context, const ForwardBatch& batch,
                  std::span<const SampleChoice> choices, StepInputs& inputs);

}  // namespace kvhive
