#pragma once
// The models that a daemon serves: --model DIRECTORY, or --model NAME=DIRECTORY several times, and
// what --model-options says of some of them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "config/domains/block_share.hpp"
#include "config/options.hpp"

namespace kvhive {

struct HostedModel {
  std::string name;           ///< by which clients ask for it; if none is given, the directory's
  std::string directory;      ///< in Hugging Face's format
  std::uint32_t engines = 1;  ///< processes that serve it
  /// Tokens per block. If it is 0, a block has as many as fit into the pool's, which is the largest
  /// that any model has with Options::block_size tokens.
  std::uint32_t block_size = 0;
  std::uint32_t max_model_len = 0;  ///< as Options::max_model_len
  /// Of the device tier. While the model has no more, other models' requests do not evict its
  /// blocks.
  BlockAmount min_blocks{};
};

inline constexpr std::size_t kMostModelNameBytes = 64;

/// By ModelId. Errors name the option, the value and the remedy.
[[nodiscard]] Expected<std::vector<HostedModel>> hosted_models(const Options& options);

/// The first one, or the only one of an engine. check_options() has found no error.
HostedModel hosted_model(const Options& options);

/// By ModelId.
std::vector<std::string> model_names(std::span<const HostedModel> models);

/// The engines of all models together.
std::uint32_t all_engines(std::span<const HostedModel> models);

/// Whether a device tier of so many blocks holds what the models are sure of together. Errors name
/// the model whose minimum is too much.
[[nodiscard]] Expected<void> check_minimums(std::span<const HostedModel> models,
                                            std::uint32_t blocks);

/// The options for one of several models: as if there were no others, with its own adapters alone,
/// but with `engines` of all.
Options options_of(const Options& options, std::span<const HostedModel> models, std::size_t model);

}  // namespace kvhive
