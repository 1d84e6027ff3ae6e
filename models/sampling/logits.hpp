#pragma once
// What sampling asks of a row of logits, [vocabulary]: each is one pass, by vectors. All take a
// logit as usable_logit() does (kernels/sampling.hpp).

#include <cstddef>
#include <span>

namespace kvhive {

/// The first of the largest. \pre there is one
std::size_t index_of_largest(std::span<const float> logits);

/// weights[i] = exp((logit - largest) / temperature).
/// \pre weights.size() == logits.size(); `largest` is the largest logit; temperature > 0
void relative_weights(std::span<const float> logits, float largest, double temperature,
                      std::span<double> weights);

/// The sum of these weights, with temperature 1.
double total_weight(std::span<const float> logits, float largest);

}  // namespace kvhive
