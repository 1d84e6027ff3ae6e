#pragma once
// One step as a GpuTransformer queues it. Everything that its kernels read is laid out in one piece
// of host memory and copied to the device by one copy.
//
// Decode steps (one token of each sequence) are padded so that one graph serves many of them: rows
// are padded to a usual number, block tables are widened, attention's plan is padded. A padding row
// writes to no slot and attends to nothing; what it samples is ignored. Padding does not change
// another row's bits, unless the device's library chooses the algorithm of a product by the number
// of rows.

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
#include "models/layer_groups.hpp"

namespace kvhive {

/// Fills the host memory part by part. A part has the same offset there and on the device.
class StepInputs {
 public:
  StepInputs(std::byte* host, const std::byte* device, std::size_t capacity)
      : host_(host), device_(device), capacity_(capacity) {}

  /// Adds rows of `width` values, each padded with `filler` to `room` values; then adds rows of
  /// `filler` until there are `rows`.
  ///
  /// \returns the part's address on the device
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

/// The facts about the model and its memory that a plan depends on.
struct StepContext {
  PagedAttentionArgs attention;  ///< arguments for layer 0, without the batch's part
  std::span<const AttentionKind> kinds;
  std::uint32_t groups = 1;
  GpuLimits limits;
  float* states = nullptr;  ///< scratch on the device, with room for most_states states
  std::int32_t most_states = 0;
  std::byte* kv_base = nullptr;  ///< as passed to start()
  KvLayout layout;
};

/// What all kernels of a step share; pointers into device memory.
struct GpuStep {
  std::int32_t T = 0, n = 0, K = 0;
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* adapters = nullptr;         ///< [T], -1 = none; null: none for any row
  std::vector<const std::int64_t*> slot_mapping;  ///< by cache group
  const std::int32_t* logit_rows = nullptr;
  const SampleChoice* choices = nullptr;
  /// Block tables [B, M] by kind of layers. To layers with chunks each chunk is a sequence of its
  /// own: a token sees nothing of those before.
  struct Tables {
    const BlockId* entries = nullptr;
    std::int32_t B = 0, M = 0;
  };
  std::vector<Tables> tables;
  /// Rows whose embeddings are given, scaled, in host memory; one entry has all that follow each
  /// other.
  std::span<const EmbeddedRow> embedded{};
  /// For each kind of layers the calls that compute attention: one, or several if the states do not
  /// fit into the scratch.
  std::vector<std::vector<AttentionWork>> attention;
  /// Set for a decode step that computes attention in one call for each kind.
  std::optional<DecodeShape> shape;
};

GpuStep plan_step(const StepContext& context, const ForwardBatch& batch,
                  std::span<const SampleChoice> choices, StepInputs& inputs);

}  // namespace kvhive
