#pragma once
// The next token of a sampled row, on the CPU: with the request's rules, if it has some.

#include <span>

#include "actors/speculation/accepted.hpp"

namespace kvhive {

/// \param logits  the row's, as the model gives them
Sampled choose_token(const SampledRow& row, std::span<const float> logits);

}  // namespace kvhive
