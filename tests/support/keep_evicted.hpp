#pragma once
// Keeps the content that an allocation evicted, as block manager and swapper do.

#include "pool/block_pool.hpp"
#include "pool/scrub.hpp"
#include "tests/support/payload.hpp"

namespace kvhive::testing {

/// Copies evicted content out of the device, and then hands the blocks to their new domains.
inline void move_out(BlockPool& pool, std::span<const Evicted> evicted,
                     std::span<const Demotion> demotions) {
  for (const auto& [content, destination, is_on_host_already] : demotions)
    if (!is_on_host_already) copy_payload(pool.memory(), content.block, destination);
  for (const Evicted& content : evicted)
    if (pool.domain_of(content.block) != content.new_domain)
      change_domain(pool.memory(), content.block, content.new_domain);
}

/// Demotes evicted content to the host tier as far as there is room. Returns the demotions.
inline std::vector<Demotion> keep_evicted(BlockPool& pool, std::span<const Evicted> evicted) {
  std::vector<Demotion> demotions = pool.demote(evicted);
  move_out(pool, evicted, demotions);
  pool.finish_demotion(demotions);
  return demotions;
}

}  // namespace kvhive::testing
