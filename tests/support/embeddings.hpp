#pragma once
// What a model's embedding layer makes of tokens, as Hugging Face's get_input_embeddings() does.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "models/config/load_model_config.hpp"
#include "models/safetensors.hpp"

namespace kvhive::testing {

/// Rows of config.json's hidden_size.
inline std::vector<float> embeddings_of(const std::filesystem::path& model,
                                        std::span<const TokenId> tokens) {
  const ModelConfig config = load_model_config(model).value();
  const auto files = SafetensorsDirectory::open(model).value();
  const std::int64_t shape[] = {config.vocab_size, config.hidden_size};
  const TensorView table = files.find("model.embed_tokens.weight", shape).value();
  const auto width = static_cast<std::size_t>(config.hidden_size);
  std::vector<float> rows(tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    read_floats(table, static_cast<std::size_t>(tokens[i]) * width,
                std::span(rows).subspan(i * width, width));
  if (config.architecture->embedding_is_scaled)
    for (float& value : rows) value *= config.embedding_scale(table.dtype);
  return rows;
}

}  // namespace kvhive::testing
