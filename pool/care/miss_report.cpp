#include "pool/care/miss_report.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "hashing/cache_salt.hpp"
#include "pool/prefix_index.hpp"

namespace kvhive {
namespace {

class Explanation {
 public:
  Explanation(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens,
              const ExtraKey& salt)
      : memory_(memory),
        domain_(domain),
        tokens_(tokens),
        salt_(salt),
        block_tokens_(memory.geometry().tokens_per_block),
        hasher_(memory.control().header.secret),
        index_(memory.index(), memory.layout().index_buckets) {}

  MissReport run() {
    collect_blocks();
    const EvictionJournal journal(memory_);
    for (const DepartureRecord& record : journal.read())
      departures_.insert_or_assign(record.hash_low, record);
    report_.has_forgotten = journal.has_forgotten();
    report_.matchable = tokens_.empty() ? 0 : (tokens_.size() - 1) / block_tokens_;

    hasher_.extend(chain_, domain_, tokens_, block_tokens_, salt_);
    parent_uid_ = kRootUid | domain_.value;
    for (std::size_t i = 0; i < chain_.size(); ++i) report_.blocks.push_back(status_at(i));
    search_other_domains();
    search_other_salts();
    count_reachable();
    return std::move(report_);
  }

 private:
  BlockView view(BlockId block) const { return memory_.block(block); }

  void collect_blocks() {
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      const BlockId block{id};
      const BlockState state = view(block).state();
      if (state == BlockState::ready)
        domains_.insert(view(block).domain());
      else if (state != BlockState::filling)
        continue;
      by_hash_.emplace(view(block).name_low(), block);
    }
  }

  /// Whether the block has what the prompt's i-th block has, if the prompt's salt were `salt`.
  bool holds(BlockId block, std::size_t i, const ExtraKey& salt) const {
    return memory_.tokens_of(block).holds(tokens_.subspan(i * block_tokens_, block_tokens_)) &&
           extra_of(block) == (i == 0 ? salt : kNoExtraKey);
  }

  ExtraKey extra_of(BlockId block) const {
    return view(block).has_extra() != 0 ? memory_.tokens_of(block).extra_key() : kNoExtraKey;
  }

  bool is_hinted(Hash128 name, BlockId block) const {
    bool is_found = false;
    index_.for_each(name, [&](BlockId hinted) {
      is_found |= hinted == block;
      return PrefixIndex::HintUse::keep;  // the pool is mapped read-only, so no hint is dropped
    });
    return is_found;
  }

  /// The first status, in the order of the enum, that applies to any block of this name.
  BlockStatus status_at(std::size_t i) {
    BlockStatus best = status_by_journal(chain_[i]);
    std::array<std::uint64_t, kTiers> serials{~0ull, ~0ull};
    const auto [begin, end] = by_hash_.equal_range(chain_[i].low);
    const std::optional<std::uint64_t> parent = parent_uid_;
    parent_uid_.reset();
    for (auto candidate = begin; candidate != end; ++candidate) {
      const BlockId block = candidate->second;
      const auto status = status_of(block, i, parent);
      if (!status || *status > best.status) continue;
      if (*status < best.status) best = {.status = *status};
      const auto tier = std::size_t(memory_.tier_of(block));
      const std::uint64_t serial = view(block).serial();
      best.holders |= view(block).word().holders();
      if (best.blocks[tier] != kNullBlock && serial > serials[tier]) continue;
      best.blocks[tier] = block;
      serials[tier] = serial;
      if (*status == CacheStatus::present || *status == CacheStatus::unhinted)
        parent_uid_ = view(block).uid();
    }
    note_demotion(chain_[i], best);
    return best;
  }

  /// The status of one block that has the hash of the prompt's i-th block. Nothing if the block's
  /// name differs after all, or the block was taken while it was read.
  std::optional<CacheStatus> status_of(BlockId block, std::size_t i,
                                       std::optional<std::uint64_t> parent) const {
    const BlockView b = view(block);
    const BlockWord before = b.word();
    if (b.name() != chain_[i]) return std::nullopt;
    if (before.state() == BlockState::filling)
      return b.uid() == kAnnounced ? std::optional(CacheStatus::computing) : std::nullopt;
    if (!before.is_ready()) return std::nullopt;
    CacheStatus status = CacheStatus::present;
    if (!holds(block, i, salt_))
      status = CacheStatus::collision;
    else if (parent && b.parent_uid() != *parent)
      status = CacheStatus::orphaned;
    else if (!is_hinted(chain_[i], block))
      status = CacheStatus::unhinted;
    return b.word().generation() == before.generation() ? std::optional(status) : std::nullopt;
  }

  const DepartureRecord* last_departure(Hash128 name) const {
    const auto found = departures_.find(name.low);
    return found != departures_.end() && found->second.is_of(name) ? &found->second : nullptr;
  }

  BlockStatus status_by_journal(Hash128 name) const {
    const DepartureRecord* last = last_departure(name);
    if (last == nullptr) return {};
    const CacheStatus status = last->kind == Departure::retired   ? CacheStatus::retired
                               : last->kind == Departure::dropped ? CacheStatus::dropped
                                                                  : CacheStatus::evicted;
    return {.status = status, .slot = last->slot, .unix_ms = last->unix_ms};
  }

  /// For a block that only the host tier has: notes when and by which process it was moved there.
  void note_demotion(Hash128 name, BlockStatus& block) const {
    if (block.status != CacheStatus::present ||
        block.blocks[std::size_t(Tier::device)] != kNullBlock)
      return;
    const DepartureRecord* last = last_departure(name);
    if (last == nullptr || last->kind != Departure::demoted) return;
    block.was_demoted = true;
    block.slot = last->slot;
    block.unix_ms = last->unix_ms;
  }

  void search_other_domains() {
    domains_.erase(domain_);
    for (const DomainId other : domains_) search(other, salt_, CacheStatus::other_domain);
  }

  /// A salt is known only by the first blocks that have it.
  void search_other_salts() {
    if (chain_.empty()) return;
    std::set<ExtraKey> salts;
    for (const auto& [hash, block] : by_hash_) {
      const BlockView b = view(block);
      const bool is_first = b.word().is_ready() && b.parent_uid() == (kRootUid | domain_.value);
      if (!is_first) continue;
      const ExtraKey salt = extra_of(block);
      if (salt != salt_ && holds(block, 0, salt)) salts.insert(salt);
    }
    for (const ExtraKey& salt : salts) search(domain_, salt, CacheStatus::other_salt);
  }

  /// Gives the status to all blocks of the prompt that were never seen and are published there.
  void search(DomainId domain, const ExtraKey& salt, CacheStatus status) {
    std::vector<Hash128> chain;
    hasher_.extend(chain, domain, tokens_, block_tokens_, salt);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      BlockStatus& block = report_.blocks[i];
      if (block.status != CacheStatus::never_seen || !is_published(chain[i], i, salt)) continue;
      block.status = status;
      block.domain = domain;
    }
  }

  /// Whether any published block has this name and what the prompt's i-th block has.
  bool is_published(Hash128 name, std::size_t i, const ExtraKey& salt) const {
    const auto [begin, end] = by_hash_.equal_range(name.low);
    return std::any_of(begin, end, [&](const auto& candidate) {
      const BlockView b = view(candidate.second);
      return b.word().is_ready() && b.name() == name && holds(candidate.second, i, salt);
    });
  }

  /// Counts the blocks that an engine's match takes: from the device tier first, and after the
  /// first block that is missing there, from the host tier.
  void count_reachable() {
    const auto is_in = [&](std::size_t i, Tier tier) {
      return i < std::min(report_.blocks.size(), report_.matchable) &&
             report_.blocks[i].status == CacheStatus::present &&
             report_.blocks[i].blocks[std::size_t(tier)] != kNullBlock;
    };
    while (is_in(report_.on_device, Tier::device)) ++report_.on_device;
    while (is_in(report_.computed_from(), Tier::host)) ++report_.on_host;
  }

  const PoolMemory& memory_;
  DomainId domain_;
  std::span<const TokenId> tokens_;
  ExtraKey salt_;
  std::size_t block_tokens_;
  BlockHasher hasher_;
  PrefixIndex index_;
  MissReport report_;
  std::vector<Hash128> chain_;
  std::unordered_multimap<std::uint64_t, BlockId> by_hash_;
  std::unordered_map<std::uint64_t, DepartureRecord> departures_;
  std::set<DomainId> domains_;
  /// The uid of the prompt's previous block, if that block is published and so are all blocks
  /// before it.
  std::optional<std::uint64_t> parent_uid_;
};

}  // namespace

std::string_view to_string(CacheStatus status) {
  switch (status) {
    case CacheStatus::present: return "present";
    case CacheStatus::unhinted: return "unhinted";
    case CacheStatus::computing: return "computing";
    case CacheStatus::orphaned: return "orphaned";
    case CacheStatus::collision: return "collision";
    case CacheStatus::evicted: return "evicted";
    case CacheStatus::retired: return "retired";
    case CacheStatus::dropped: return "dropped";
    case CacheStatus::other_domain: return "other_domain";
    case CacheStatus::other_salt: return "other_salt";
    case CacheStatus::never_seen: return "never_seen";
  }
  return "unknown";
}

MissReport explain_miss(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens,
                        std::string_view cache_salt) {
  return Explanation(memory, domain, tokens, salt_key(cache_salt)).run();
}

}  // namespace kvhive
