#include "models/adapters/lora_adapter.hpp"

#include <cstring>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// The matrix as f32, in memory of its own: adapters are small.
Matmul copied(const TensorView& tensor, std::int32_t rows, std::int32_t columns) {
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  read_floats(tensor, 0, values);
  std::vector<std::byte> owned(values.size() * sizeof(float));
  std::memcpy(owned.data(), values.data(), owned.size());
  return Matmul({Dtype::f32, rows, columns, {}}, std::move(owned), {});
}

}  // namespace

LoraAdapter::LoraAdapter(const LoraFile& file) : scale_(file.scale()) {
  for (const LoraFile::Pair& pair : file.pairs()) {
    pairs_.emplace(std::pair{pair.layer, pair.weight},
                   Pair{copied(pair.a, pair.rank, pair.in), copied(pair.b, pair.out, pair.rank),
                        pair.rank, pair.in, pair.out});
    bytes_ += sizeof(float) * static_cast<std::size_t>(pair.rank) *
              (static_cast<std::size_t>(pair.in) + static_cast<std::size_t>(pair.out));
  }
}

Expected<LoraAdapter> LoraAdapter::load(const std::filesystem::path& directory,
                                        const ModelConfig& config) {
  const auto file = LoraFile::open(directory, config);
  if (!file) return forward_error(file);
  return LoraAdapter(*file);
}

void LoraAdapter::add(std::int32_t layer, LayerWeight weight, std::span<const float> x,
                      std::span<float> y, std::vector<float>& scratch) const {
  const auto found = pairs_.find({layer, weight});
  if (found == pairs_.end()) return;
  const Pair& pair = found->second;
  const std::size_t rows = x.size() / static_cast<std::size_t>(pair.in);
  KV_CHECK(y.size() == rows * static_cast<std::size_t>(pair.out), y.size(), rows, pair.out);
  const std::size_t inner = rows * static_cast<std::size_t>(pair.rank);
  scratch.resize(inner + y.size());
  const std::span<float> narrow = std::span(scratch).first(inner);
  const std::span<float> wide = std::span(scratch).subspan(inner);
  pair.a.apply(x, narrow);
  pair.b.apply(narrow, wide);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += scale_ * wide[i];
}

}  // namespace kvhive
