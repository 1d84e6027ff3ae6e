#pragma once
// A prompt given as embeddings: instead of each token, the row that the model would look up for it,
// or any other. In the place of its tokens a sequence has kEmbedded; which rows those are says an
// extra key of each block.
//
// Source: vLLM's prompt_embeds (v1/core/kv_cache_utils.py, _gen_prompt_embeds_extra_hash_keys: a
// block's extra key is a digest of its rows).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/expected.hpp"
#include "hashing/block_hash.hpp"

namespace kvhive {

/// Rows of f32 and their digests. Does not change after make().
class EmbeddedPrompt {
 public:
  /// Errc::bad_argument if a value is infinite or not a number. Such a row would make every logit
  /// behind it one.
  /// \param values  [rows, width]
  [[nodiscard]] static Expected<EmbeddedPrompt> make(std::uint32_t width,
                                                     std::vector<float> values);

  std::size_t rows() const { return digests_.size(); }
  /// That it takes.
  std::size_t bytes() const { return values_.size() * sizeof(float) + rows() * sizeof(ExtraKey); }
  std::span<const float> row(std::size_t place) const {
    return std::span(values_).subspan(place * width_, width_);
  }
  /// SHA-256 of each row, cut to 128 bits.
  std::span<const ExtraKey> digests() const { return digests_; }
  /// The same number for equal prompts.
  std::uint64_t number() const { return number_; }

 private:
  std::uint32_t width_ = 0;
  std::vector<float> values_;
  std::vector<ExtraKey> digests_;
  std::uint64_t number_ = 0;
};

}  // namespace kvhive
