#include "pool/scrub.hpp"

#include <cstring>

#include "base/kill_point.hpp"

namespace kvhive {

void change_domain(const PoolMemory& memory, BlockId block, DomainId domain) {
  const std::size_t bytes = memory.geometry().block_bytes();
  const Tier tier = memory.tier_of(block);
  if (bytes != 0 && memory.is_mapped(tier)) {
    const std::size_t place = block.value - memory.tier_layout(tier).first_block;
    std::byte* payload = memory.arena(tier) + place * bytes;
    KV_KILL_POINT("scrub.before_zero");
    std::memset(payload, 0, bytes / 2);
    KV_KILL_POINT("scrub.half_zeroed");
    std::memset(payload + bytes / 2, 0, bytes - bytes / 2);
  }
  KV_KILL_POINT("scrub.before_owner");
  memory.block(block).set_domain(domain);
  KV_KILL_POINT("scrub.done");
}

}  // namespace kvhive
