#include "pool/processes/process_slot.hpp"

#include <unistd.h>

#include <chrono>

#include "base/kill_point.hpp"

namespace kvhive {
namespace {

/// Records what earlier processes in the slot have counted. No process reads it before the pid is
/// stored, so a kill in between does no harm: the next process records it again.
void note_sums(ProcessEntry& entry) {
  for (std::size_t i = 0; i < kCounters.size(); ++i) {
    entry.at_sign_in[i].store(entry.counters.values[i].load(relaxed), relaxed);
    KV_KILL_POINT("sign_in.half_noted");
  }
  for (std::size_t i = 0; i < kAllHistogramCells; ++i)
    entry.cells_at_sign_in[i].store(entry.counters.cells[i].load(relaxed), relaxed);
}

void zero_gauges(SlotCounters& counters) {
  for (std::size_t i = 0; i < kCounters.size(); ++i) {
    if (kCounters[i].kind != CounterKind::gauge) continue;
    counters.values[i].store(0, relaxed);
    KV_KILL_POINT("sign_out.half");
  }
}

}  // namespace

void sign_in(const PoolMemory& memory, ProcessSlot slot, std::uint32_t index, std::uint32_t pid) {
  ProcessEntry& entry = memory.control().processes[slot.value];
  KV_KILL_POINT("sign_in.before");
  zero_gauges(entry.counters);
  note_sums(entry);
  KV_KILL_POINT("sign_in.noted");
  entry.index.store(index, relaxed);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  entry.started.store(std::chrono::duration_cast<std::chrono::seconds>(now).count(), relaxed);
  KV_KILL_POINT("sign_in.before_pid");
  entry.pid.store(pid != 0 ? pid : static_cast<std::uint32_t>(getpid()), std::memory_order_release);
  KV_KILL_POINT("sign_in.done");
}

void sign_out(const PoolMemory& memory, ProcessSlot slot) {
  ProcessEntry& entry = memory.control().processes[slot.value];
  KV_KILL_POINT("sign_out.before");
  zero_gauges(entry.counters);
  KV_KILL_POINT("sign_out.before_pid");
  entry.pid.store(0, std::memory_order_release);
  KV_KILL_POINT("sign_out.done");
}

}  // namespace kvhive
