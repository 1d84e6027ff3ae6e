#pragma once
// A LoRA adapter (lora_file.hpp) on the CPU: its matrices are f32 copies.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/expected.hpp"
#include "models/adapters/lora_file.hpp"
#include "models/product/matmul.hpp"

namespace kvhive {

class LoraAdapter {
 public:
  explicit LoraAdapter(const LoraFile& file);
  /// Errors are LoraFile::open()'s.
  [[nodiscard]] static Expected<LoraAdapter> load(const std::filesystem::path& directory,
                                                  const ModelConfig& config);

  /// Adds what the adapter adds to the product of a layer's matrix; nothing if it has none for it.
  /// The bits of a row of y depend only on its rows of x and y.
  /// \param x        [rows, in]
  /// \param y        [rows, out]
  /// \param scratch  grows as needed
  void add(std::int32_t layer, LayerWeight weight, std::span<const float> x, std::span<float> y,
           std::vector<float>& scratch) const;

  /// How many matrices it has something for.
  std::size_t size() const { return pairs_.size(); }
  /// Bytes of its matrices, f32 copies of the file's.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Pair {
    Matmul a, b;
    std::int32_t rank = 0, in = 0, out = 0;
  };

  std::map<std::pair<std::int32_t, LayerWeight>, Pair> pairs_;
  float scale_ = 1;
  std::size_t bytes_ = 0;
};

}  // namespace kvhive
