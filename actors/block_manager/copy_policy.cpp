#include "actors/block_manager/copy_policy.hpp"

#include <algorithm>

namespace kvhive {
namespace {

constexpr double kNewest = 1.0 / 8;  // weight of the latest measurement
constexpr double kMost = 8;          // a sample above 8 x the average is an outlier and is clamped
// If the cost of a copy is so high that no copy is made, it is not measured any more. It may be
// wrong: the process may have been stopped during its first copy. So each refused copy lowers the
// cost by this share, until a copy is made and measured again.
constexpr double kForgotten = 1.0 / 64;

void smooth(double& value, double measured) {
  value = value == 0 ? measured : value + kNewest * (std::min(measured, kMost * value) - value);
}

}  // namespace

void CopyPolicy::learn(std::size_t copied_blocks, std::size_t tokens, std::size_t sequences,
                       const StepTimes& times) {
  if (copied_blocks != 0 && times.copying > 0)
    smooth(block_copy_, times.copying / static_cast<double>(copied_blocks));
  // If there were copies but no time for them, they ran while the model computed, and may have made
  // `computing` longer. Such a step is not used for the cost of a token.
  const bool is_pure = copied_blocks == 0 || times.copying > 0;
  if (is_pure && tokens >= sequences + tokens_per_block_ && times.computing > 0)
    smooth(token_, times.computing / static_cast<double>(tokens));
}

bool CopyPolicy::pays(double copies, double tokens) {
  if (block_copy_ == 0 || token_ == 0 || copies * block_copy_ <= tokens * token_) return true;
  block_copy_ -= block_copy_ * kForgotten;
  return false;
}

}  // namespace kvhive
