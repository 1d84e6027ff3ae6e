#pragma once
// Reads a model's config.json.

#include <filesystem>

#include "base/expected.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// Reads config.json and, where there is one, generation_config.json (whose eos ids win, as they do
/// in Hugging Face's and vLLM's generation). A field that changes what the model computes, in a way
/// that kvhive does not, is an error that names it.
[[nodiscard]] Expected<ModelConfig> load_model_config(const std::filesystem::path& directory);

}  // namespace kvhive
