#pragma once
// The adapters that an operator names: --lora-modules NAME=DIRECTORY,NAME=DIRECTORY (vLLM's option
// of this name). If a daemon has several models, each adapter has its model in front:
// MODEL:NAME=DIRECTORY.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct LoraModule {
  std::string name;       ///< by which requests ask for it
  std::string directory;  ///< with PEFT's adapter_config.json and adapter_model.safetensors
  std::size_t model = 0;  ///< of several models, the one whose adapter it is
};

inline constexpr std::size_t kMostAdapterNameBytes = 64;

/// Errors: no name or directory, a name twice, too long, or with spaces or control characters; of
/// several models, none in front. A request over HTTP names a model or an adapter by one text, so
/// names are unique among the adapters of all models, and no model has one of them.
/// \param models  the names of the daemon's models; none = one model, whose name is not compared
[[nodiscard]] Expected<std::vector<LoraModule>> parse_lora_modules(
    std::string_view text, std::span<const std::string> models = {});

}  // namespace kvhive
