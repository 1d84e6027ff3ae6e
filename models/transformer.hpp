#pragma once
// A decoder of the Llama family over a paged KV cache, on the CPU: f32 activations, weights as
// stored (models/matmul.hpp).
//
// Invariant: a token's logits and KV depend on its sequence alone, bit by bit; not on what else is
// in the batch nor on how the sequence was cut into steps.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "base/expected.hpp"
#include "config/kv_layout.hpp"
#include "models/attention_backend.hpp"
#include "models/forward_batch.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// Move-only. One forward() at a time; several Transformers of one directory share its pages.
class Transformer {
 public:
  /// \param directory  config.json and safetensors files, as Hugging Face lays them out
  /// \param progress   called with (tensors done, tensors in all) while they are checked and mapped
  [[nodiscard]] static Expected<Transformer> load(
      const std::filesystem::path& directory,
      const std::function<void(std::size_t, std::size_t)>& progress = {},
      AttentionBackend attention = {});

  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  const ModelConfig& config() const;

  /// \param kv_base  block 0 of an arena laid out as `layout` says; must be of this model
  /// \param logits   [logit_rows.size(), vocab], overwritten
  /// Returns nothing: all inputs were checked by the caller, and are KV_CHECKed here.
  void forward(const ForwardBatch& batch, std::byte* kv_base, const KvLayout& layout,
               std::span<float> logits);

 private:
  struct State;

  explicit Transformer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvhive
