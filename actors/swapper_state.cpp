#include "actors/swapper_state.hpp"

#include "base/stop_watch.hpp"
#include "kernels/block_copy.hpp"
#include "pool/scrub.hpp"

namespace kvhive {

Expected<double> SwapperState::move(const StepPlan& plan) {
  const StopWatch watch;
  const std::size_t bytes = memory_.geometry().block_bytes();
  std::byte* const device = memory_.arena(Tier::device);
  std::byte* const host = memory_.arena(Tier::host);
  block_copy_cpu(whole_blocks(device, host, bytes, plan.swap_out));
  block_copy_cpu(whole_blocks(device, host, bytes, plan.demotions));
  for (const auto& [block, domain] : plan.domain_changes) change_domain(memory_, block, domain);
  block_copy_cpu(whole_blocks(host, device, bytes, plan.swap_in));
  return watch.seconds();
}

}  // namespace kvhive
