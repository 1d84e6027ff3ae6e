// Moves evicted content from the device tier to the host tier.

#include <algorithm>
#include <unordered_set>

#include "base/kill_point.hpp"
#include "pool/block_pool_content.hpp"

namespace kvhive {

/// Calls use(content) with the evicted content as the block's descriptor and token row still have
/// it.
template <class Use>
void BlockPool::with_content(const Evicted& evicted, Use&& use) {
  const BlockView b = view(evicted.block);
  const TokenRow row = memory_.tokens_of(evicted.block);
  const ModelId model = memory_.geometry().model_of(b.group());  // it may be another one's
  const std::vector<TokenId> tokens = row.read(memory_.geometry()[model].tokens_per_block);
  const ExtraKey extra = b.has_extra() ? row.extra_key() : kNoExtraKey;
  use(Content{{evicted.domain, b.parent_uid(), b.depth(), b.group()}, tokens, extra});
}

/// Selects from `evicted` the contents that can be found and are published in neither tier; they
/// will be copied.
/// Also selects the contents that the host tier has already, and pins their host blocks, so that
/// finish_demotion() releases them as the most recently used.
std::vector<Demotion> BlockPool::select_for_demotion(std::span<const Evicted> evicted) {
  std::vector<Demotion> demotions;
  std::unordered_set<std::uint64_t> uids;  // two processes may have computed the same content
  for (const Evicted& gone : evicted) {
    if (gone.uid - 1 >= kImplausible || memory_.is_forgotten(gone.uid)) continue;  // or corrupt
    with_content(gone, [&](const Content& content) {
      const BlockId on_host = find_and_pin(Tier::host, gone.name, content);
      if (on_host != kNullBlock)
        demotions.push_back({gone, on_host, true});
      else if (uids.insert(gone.uid).second && find_uid(gone.name, content) == 0)
        demotions.push_back({gone, kNullBlock, false});
    });
  }
  return demotions;
}

std::vector<Demotion> BlockPool::demote(std::span<const Evicted> evicted) {
  std::vector<Demotion> demotions = select_for_demotion(evicted);
  std::size_t missing = 0;
  for (const Demotion& demotion : demotions) missing += !demotion.is_on_host_already;
  std::vector<BlockId> taken;
  Demand demand{Tier::host, std::min(missing, available(Tier::host)), {}, taken, nullptr};
  take(demand);  // may take fewer
  std::erase_if(demotions, [&](const Demotion& d) {
    return !d.is_on_host_already && missing-- > taken.size();
  });
  KV_KILL_POINT("demote.blocks_taken");
  auto next = taken.begin();
  for (auto& [gone, destination, is_on_host_already] : demotions) {
    if (is_on_host_already) continue;
    destination = *next++;
    change_domain(destination, gone.domain);
    KV_KILL_POINT("demote.before_content");
    // The uid stays 0 until the bytes are copied. So no match finds the block before that, even if
    // its word gets corrupted to "ready".
    with_content(gone, [this, &from = gone, to = destination](const Content& content) {
      write_content(to,
                    {from.name, 0, content.parent.uid, view(from.block).serial(),
                     content.parent.depth, content.parent.group},
                    content);
    });
    KV_KILL_POINT("demote.after_content");
  }
  return demotions;
}

void BlockPool::finish_demotion(std::span<const Demotion> demotions) {
  std::vector<BlockId> copied, all;
  for (const auto& [content, block, is_on_host_already] : demotions) {
    all.push_back(block);
    const BlockWord word = view(block).word();
    if (is_on_host_already || !word.is_filled_by(self_)) continue;
    KV_KILL_POINT("demotion.before_uid");
    view(block).set_uid(content.uid);
    KV_KILL_POINT("demotion.before_ready");
    make_ready(block, word, content.name);
    copied.push_back(block);
  }
  journal_.note(Departure::demoted, slot_, copied);
  KV_KILL_POINT("demotion.before_count");
  bump((*counters_)["demoted_blocks"], copied.size());
  KV_KILL_POINT("demotion.before_release");
  // release() goes from back to front. The content that was evicted from the device tier first must
  // also be the first to be evicted from the host tier.
  std::reverse(all.begin(), all.end());
  release(all);
}

}  // namespace kvhive
