#pragma once
// A decoder (architecture.hpp lists the families) over a paged KV cache, on the CPU: f32
// activations, weights as stored (models/product/matmul.hpp).
//
// Invariant: the bits of a token's logits and KV depend only on its sequence; not on other
// sequences in the batch, nor on how the sequence was split into steps.

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
#include "models/config/model_config.hpp"

namespace kvhive {

/// Move-only. Only one forward() at a time. Several Transformers of the same directory share the
/// memory of its files.
class Transformer {
 public:
  /// \param directory  config.json and safetensors files, as Hugging Face lays them out
  /// \param progress   called with (tensors done, all tensors) while tensors are checked and mapped
  [[nodiscard]] static Expected<Transformer> load(
      const std::filesystem::path& directory,
      const std::function<void(std::size_t, std::size_t)>& progress = {},
      AttentionBackend attention = {});

  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  const ModelConfig& config() const;

  /// Loads a LoRA adapter (models/adapters/lora_adapter.hpp). Returns its number, by which
  /// ForwardBatch::adapters names it: 0, 1, ...
  [[nodiscard]] Expected<std::int32_t> add_adapter(const std::filesystem::path& directory);

  /// Bytes of weights that are this process's own, beside the files' pages that all engines share.
  std::size_t private_weight_bytes() const;

  /// Bytes of the intermediate rows of a step, which forward() keeps for the next step. The largest
  /// step so far counts. Not included: logits, and what the libraries allocate.
  static std::size_t step_bytes(const ModelConfig& config, std::size_t tokens,
                                std::size_t logit_rows);

  /// \param kv_base  block 0 of an arena with this `layout`, which must be the model's: of all
  /// layers,
  ///                 or of the layers of a cache group (models/layer_groups.hpp). The batch has the
  ///                 tables of as many groups
  /// \param logits   [logit_rows.size(), vocab], overwritten
  /// It cannot fail: the caller has checked all inputs. They are asserted here with KV_CHECK.
  void forward(const ForwardBatch& batch, std::byte* kv_base, const KvLayout& layout,
               std::span<float> logits);

  /// Logits of further tokens of the last forward(): with those of all tokens at once, a long
  /// prompt would take a gigabyte.
  /// \param rows    rows of that batch
  /// \param logits  [rows.size(), vocab], overwritten
  void further_logits(std::span<const std::int32_t> rows, std::span<float> logits);

 private:
  struct State;

  explicit Transformer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kvhive
