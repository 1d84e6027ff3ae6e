#include "actors/choose_token.hpp"

#include "models/sampling/logits_processor.hpp"
#include "models/sampling/sampler.hpp"

namespace kvhive {

Sampled choose_token(const SampledRow& row, std::span<const float> logits) {
  const ScheduledSequence& work = *row.work;
  if (!work.logits) return sample(logits, work.sampling, row.position());
  std::vector<float> changed(logits.begin(), logits.end());
  work.logits->apply(changed, row.answer());
  return sample(logits, changed, work.sampling, row.position());
}

}  // namespace kvhive
