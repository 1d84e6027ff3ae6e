#pragma once
// A device's choice as the CPU's sampler takes it.

#include "kernels/sampling.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {

inline SamplingParams params_of(const SampleChoice& choice) {
  return {.temperature = choice.temperature,
          .top_k = choice.top_k,
          .top_p = choice.top_p,
          .min_p = choice.min_p,
          .seed = choice.seed};
}

}  // namespace kvhive
