#pragma once
// `kvhive-engine --describe`: prints what a model needs. The keeper learns about the model only
// from this output.

#include <array>
#include <cstdint>
#include <string_view>

#include "config/options.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

enum class Described : std::uint8_t {
  config,   ///< only the facts in the model's files
  profile,  ///< also an engine's private memory, measured after its largest step
};
constexpr std::array<std::string_view, 2> names_of(Described) { return {"config", "profile"}; }

/// Prints the model's facts as one line of JSON, which tools/keeper/model_facts.hpp reads. First
/// checks that an engine could load the model.
[[nodiscard]] Expected<void> print_model_facts(const Options& options, const ModelConfig& config,
                                               Described what);

}  // namespace kvhive
