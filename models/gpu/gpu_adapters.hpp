#pragma once
// Adapters (LoRA) in the region of a model's weights, behind the weights: all engines of a GPU map
// one copy. As with weights, where a matrix is follows from what all processes know: the model's
// config and the shapes in the adapters' files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/expected.hpp"
#include "kernels/row_product.hpp"
#include "models/adapters/lora_file.hpp"
#include "models/gpu/uploader.hpp"

namespace kvhive {

/// All offsets are in bytes from the start of the region.
class GpuAdapters {
 public:
  /// None.
  GpuAdapters() = default;
  /// \param dtype  that their matrices get: the model's
  /// \param begin  the end of the model's weights
  GpuAdapters(std::span<const LoraFile> files, Dtype dtype, std::size_t begin);

  std::size_t end() const { return end_; }
  std::size_t count() const { return count_; }
  std::int32_t most_rank() const { return most_rank_; }
  /// The offset of AdapterMatrices [count] beside this matrix of the model; nothing if no adapter
  /// has any.
  std::optional<std::size_t> beside(std::int32_t layer, LayerWeight weight) const;

  /// Copies all of it into the region. All copies are complete on return.
  /// \param files   those of the constructor
  /// \param region  device memory of at least end() bytes, aligned to 256 bytes
  [[nodiscard]] Expected<void> upload(Device& device, std::span<const LoraFile> files,
                                      std::byte* region) const;

 private:
  std::size_t take(std::size_t bytes);
  [[nodiscard]] Expected<void> send_all(Uploader& uploader, std::span<const LoraFile> files,
                                        std::byte* region) const;

  struct Row {
    std::size_t offset = 0;
    std::vector<AdapterMatrices> matrices;  ///< by adapter
  };
  std::map<std::pair<std::int32_t, LayerWeight>, Row> rows_;
  Dtype dtype_{};
  std::size_t end_ = 0, count_ = 0;
  std::int32_t most_rank_ = 0;
};

}  // namespace kvhive
