#pragma once
// `kvhive-engine --describe`: what a model needs. The keeper knows nothing else of models.

#include <array>
#include <cstdint>
#include <string_view>

#include "config/options.hpp"
#include "models/model_config.hpp"

namespace kvhive {

enum class Described : std::uint8_t {
  config,   ///< what the model's files say
  profile,  ///< also the private memory of an engine, measured after its largest step
};
constexpr std::array<std::string_view, 2> names_of(Described) { return {"config", "profile"}; }

/// Prints the model's facts as one line of JSON (tools/keeper/model_facts.hpp reads them), after
/// making sure that an engine could load it.
[[nodiscard]] Expected<void> print_model_facts(const Options& options, const ModelConfig& config,
                                               Described what);

}  // namespace kvhive
