#pragma once
// The next token of a sampled row, on the CPU: with the request's rules, if it has some.

#include <cstddef>
#include <span>

#include "actors/speculation/accepted.hpp"

namespace kvhive {

/// Logits below which threads are not woken: some ten microseconds of one core.
inline constexpr std::size_t kSerialLogits = std::size_t{1} << 16;

/// \param logits  the row's, as the model gives them
Sampled choose_token(const SampledRow& row, std::span<const float> logits);

}  // namespace kvhive
