#pragma once
// What a config.json says about rotary embeddings: rope_theta and rope_scaling, or rope_parameters,
// which transformers 5 writes instead of both.

#include <cstdint>

#include "base/expected.hpp"
#include "base/json_file.hpp"

namespace kvhive {

/// How rotary frequencies are stretched for long contexts (transformers: modeling_rope_utils.py).
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 1;  ///< llama3 only, as the next
  double high_freq_factor = 4;
  std::int64_t original_max_position = 0;  ///< context the model was first trained on; llama3, yarn
  /// yarn only, as the next five. Dimensions that turn more often than `beta_fast` times in the
  /// original context stay, those that turn less often than `beta_slow` times are stretched.
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;  ///< of cosines and sines, hence of the scores twice
  /// What DeepSeek's models multiply scores by, twice; of mscale_all_dim, 1 without.
  double score_mscale = 1;
  bool is_truncated = true;  ///< the dimensions of both bounds are rounded to whole ones
};

/// The rotation of one kind of layers.
struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling;
};

/// The rotation of a model's layers. Only Gemma 3's differ.
struct RopeConfigs {
  RopeConfig full;     ///< of layers that see everything; mostly of all
  RopeConfig sliding;  ///< of layers with a window
};

/// What a model takes for fields that are left out.
struct RopeDefaults {
  double theta = 10000;
  double local_theta = 0;         ///< of sliding layers; 0: they rotate as the others
  std::int64_t max_position = 0;  ///< max_position_embeddings
};

/// Reads the rotation. Errors name the field: a kind that kvhive does not know (dynamic, longrope),
/// a number out of range, two fields that contradict each other.
[[nodiscard]] Expected<RopeConfigs> read_rope(const JsonFields& fields,
                                              const RopeDefaults& defaults);

}  // namespace kvhive
