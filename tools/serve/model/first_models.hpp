#pragma once
// Which models a service serves when it starts, and what it loads of them.

#include <chrono>
#include <string>
#include <vector>

#include "tools/serve/model/model_services.hpp"

namespace kvhive {

/// A daemon's only model is the next daemon's only one, too, whatever its name; of several each is
/// followed by its name.
/// \param options   of each model; directory, names, length and template only if it is one
/// \param chosen    of the daemon's models these; empty = all
/// \param patience  how long to wait for a daemon
[[nodiscard]] Expected<std::vector<ModelServices::First>> first_models(
    const ModelOptions& options, const std::vector<std::string>& chosen,
    std::chrono::seconds patience);

}  // namespace kvhive
