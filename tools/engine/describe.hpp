#pragma once
// `kvhive-engine --describe`: what a model needs, which is all the keeper knows of models.

#include <string>

#include "config/options.hpp"
#include "models/model_config.hpp"

namespace kvhive {

/// Prints the model's facts as one line of JSON (tools/keeper/model_facts.hpp reads them), after
/// making sure that an engine could load it.
/// \param what  "config", or "profile" to measure an engine's private memory as well
Expected<void> print_model_facts(const Options& options, const ModelConfig& config,
                                 const std::string& what);

}  // namespace kvhive
