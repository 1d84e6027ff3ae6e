#include "pool/process_slot.hpp"

#include <unistd.h>

#include <chrono>

#include "pool/kill_point.hpp"

namespace kvhive {
namespace {

/// All but `used`: that goes over from the slot's last process (pool/pool_layout.hpp).
void reset_statistics(SlotCounters& counters) {
  for (auto* counter :
       {&counters.queried_blocks, &counters.hit_blocks, &counters.allocated_blocks,
        &counters.evicted_blocks, &counters.published_blocks, &counters.demoted_blocks,
        &counters.promoted_blocks, &counters.preemptions_recompute, &counters.preemptions_swap,
        &counters.generated_tokens, &counters.prompt_tokens, &counters.cached_tokens})
    counter->store(0, std::memory_order_relaxed);
  KV_KILL_POINT("sign_in.half_reset");
  counters.running.store(0, std::memory_order_relaxed);
  counters.waiting.store(0, std::memory_order_relaxed);
}

}  // namespace

void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index, std::uint32_t pid) {
  ProcessEntry& entry = memory.control().processes[slot.value];
  KV_KILL_POINT("sign_in.before");
  reset_statistics(entry.counters);
  KV_KILL_POINT("sign_in.reset");
  entry.index.store(index, std::memory_order_relaxed);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  entry.started.store(std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                      std::memory_order_relaxed);
  KV_KILL_POINT("sign_in.before_pid");
  entry.pid.store(pid != 0 ? pid : static_cast<std::uint32_t>(getpid()), std::memory_order_release);
  KV_KILL_POINT("sign_in.done");
}

}  // namespace kvhive
