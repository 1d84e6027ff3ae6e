#include "hashing/embedded_prompt.hpp"

#include <cmath>
#include <string>

#include "base/check.hpp"
#include "hashing/sha256.hpp"

namespace kvhive {

Expected<EmbeddedPrompt> EmbeddedPrompt::make(std::uint32_t width, std::vector<float> values) {
  KV_CHECK(width != 0 && values.size() % width == 0, width, values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return failure(Errc::bad_argument, "prompt_embeds: value " + std::to_string(i % width) +
                                             " of row " + std::to_string(i / width) + " is " +
                                             std::to_string(values[i]) + "; give finite numbers");
  EmbeddedPrompt prompt;
  prompt.width_ = width;
  prompt.values_ = std::move(values);
  prompt.digests_.resize(prompt.values_.size() / width);
  for (std::size_t i = 0; i < prompt.digests_.size(); ++i)
    prompt.digests_[i] = sha256_128({std::as_bytes(prompt.row(i))});
  prompt.number_ = sha256_128({std::as_bytes(prompt.digests())})[0];
  return prompt;
}

}  // namespace kvhive
