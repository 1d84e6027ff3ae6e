#pragma once
// The adapters that an operator names: --lora-modules NAME=DIRECTORY,NAME=DIRECTORY (vLLM's option
// of this name).

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct LoraModule {
  std::string name;       ///< by which requests ask for it
  std::string directory;  ///< with PEFT's adapter_config.json and adapter_model.safetensors
};

inline constexpr std::size_t kMostAdapterNameBytes = 64;

/// Errors: no name or directory, a name twice, too long, or with spaces or control characters.
[[nodiscard]] Expected<std::vector<LoraModule>> parse_lora_modules(std::string_view text);

}  // namespace kvhive
