#pragma once
// What the service must know of the model that the engines run: its name, its tokenizer, and how
// it wants to be sampled.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/text/tokenizer.hpp"

namespace kvhive {

/// Where a request says nothing (generation_config.json, else vLLM's).
struct SamplingDefaults {
  double temperature = 1;
  double top_p = 1;
  std::int64_t top_k = 0;
  double min_p = 0;
  double repetition_penalty = 1;
};

struct ServedModel {
  std::string name;
  std::string directory;
  std::uint32_t max_model_len = 0;  ///< tokens of a request, prompt and output together
  Tokenizer tokenizer;
  SamplingDefaults sampling;
  std::chrono::seconds created{0};  ///< since 1970
  std::vector<TokenId> end_tokens;  ///< any of them ends an answer (eos_token_id)
  /// Names of the adapters that requests may ask for in place of the model.
  std::vector<std::string> adapters;
  std::uint64_t id = 0;  ///< of what the daemon serves (Hive::ModelId)
  /// Numbers of a row, if a prompt is given as embeddings; 0 = its files do not say.
  std::uint32_t hidden_size = 0;

  /// \param directory  with tokenizer.json, and generation_config.json if the model has one
  [[nodiscard]] static Expected<ServedModel> load(std::string name,
                                                  const std::filesystem::path& directory,
                                                  std::uint32_t max_model_len);

  /// A token as an answer shows it; bytes that are no whole characters as U+FFFD.
  std::string text_of(TokenId token) const;
};

}  // namespace kvhive
