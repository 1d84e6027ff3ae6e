#include "pool/care/cache_reset.hpp"

#include "base/check.hpp"
#include "base/kill_point.hpp"
#include "pool/block_lives.hpp"

namespace kvhive {

CacheReset reset_cache(const PoolMemory& memory) {
  ControlBlock& control = memory.control();
  CacheReset done{memory.resets()};
  for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id) {
    const BlockView block = memory.block(BlockId{id});
    done.forgotten += block.word().is_ready() && !memory.is_forgotten(block.uid());
  }
  // Whoever publishes behind the new roots has seen them, so it draws later serials.
  control.first_uid.store(control.next_serial.load(std::memory_order_relaxed),
                          std::memory_order_relaxed);
  KV_KILL_POINT("cache_reset.before_roots");
  KV_CHECK(done.resets.value < Resets::kMost);
  ++done.resets.value;
  BlockLives(memory).forget();
  control.resets.store(done.resets.value, std::memory_order_release);
  return done;
}

}  // namespace kvhive
