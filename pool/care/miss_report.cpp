#include "pool/care/miss_report.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "pool/prefix_index.hpp"

namespace kvhive {
namespace {

std::uint64_t get(const std::atomic<std::uint64_t>& field) {
  return field.load(std::memory_order_relaxed);
}

class Explanation {
 public:
  Explanation(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens)
      : memory_(memory),
        domain_(domain),
        tokens_(tokens),
        block_tokens_(memory.geometry().tokens_per_block),
        hasher_(memory.control().header.secret),
        index_(memory.index(), memory.layout().index_buckets) {}

  MissReport run() {
    look_at_blocks();
    const EvictionJournal journal(memory_);
    for (const DepartureRecord& record : journal.read())
      departures_.insert_or_assign(record.hash_low, record);
    report_.has_forgotten = journal.has_forgotten();
    report_.matchable = tokens_.empty() ? 0 : (tokens_.size() - 1) / block_tokens_;

    hasher_.extend(chain_, domain_, tokens_, block_tokens_);
    parent_uid_ = kRootUid | domain_.value;
    for (std::size_t i = 0; i < chain_.size(); ++i) report_.blocks.push_back(judge(i));
    look_into_other_domains();
    count_reachable();
    return std::move(report_);
  }

 private:
  const BlockDescriptor& descriptor(BlockId block) const {
    return memory_.descriptors()[block.value];
  }
  BlockWord word(BlockId block) const {
    return {descriptor(block).word.load(std::memory_order_acquire)};
  }

  void look_at_blocks() {
    for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
      const BlockId block{id};
      const BlockState state = word(block).state();
      if (state == BlockState::ready)
        domains_.insert(descriptor(block).domain.load(std::memory_order_relaxed));
      else if (state != BlockState::filling)
        continue;
      by_hash_.emplace(get(descriptor(block).hash_low), block);
    }
  }

  bool holds(BlockId block, std::size_t i) const {
    const auto* row = memory_.token_row(block);
    for (std::size_t t = 0; t < block_tokens_; ++t) {
      const auto token = static_cast<TokenId>(get(row[t / 2]) >> (t % 2 == 0 ? 0 : 32));
      if (token != tokens_[i * block_tokens_ + t]) return false;
    }
    return descriptor(block).has_extra.load(std::memory_order_relaxed) == 0;
  }

  bool is_hinted(Hash128 name, BlockId block) const {
    bool is_found = false;
    index_.for_each(name, [&](BlockId hinted) {
      is_found |= hinted == block;
      return PrefixIndex::Verdict::keep;  // we only look
    });
    return is_found;
  }

  /// In the order of the enum: the first that applies to any block of this name.
  BlockVerdict judge(std::size_t i) {
    BlockVerdict best = judge_by_journal(chain_[i]);
    std::array<std::uint64_t, kTiers> serials{~0ull, ~0ull};
    const auto [begin, end] = by_hash_.equal_range(chain_[i].low);
    const std::optional<std::uint64_t> parent = parent_uid_;
    parent_uid_.reset();
    for (auto candidate = begin; candidate != end; ++candidate) {
      const BlockId block = candidate->second;
      const auto verdict = judge_block(block, i, parent);
      if (!verdict || *verdict > best.verdict) continue;
      if (*verdict < best.verdict) best = {.verdict = *verdict};
      const auto tier = std::size_t(memory_.tier_of(block));
      const std::uint64_t serial = get(descriptor(block).serial);
      best.holders |= word(block).holders();
      if (best.blocks[tier] != kNullBlock && serial > serials[tier]) continue;
      best.blocks[tier] = block;
      serials[tier] = serial;
      if (*verdict == Verdict::present || *verdict == Verdict::unhinted)
        parent_uid_ = get(descriptor(block).uid);
    }
    note_demotion(chain_[i], best);
    return best;
  }

  std::optional<Verdict> judge_block(BlockId block, std::size_t i,
                                     std::optional<std::uint64_t> parent) const {
    const BlockDescriptor& d = descriptor(block);
    const BlockWord before = word(block);
    if (Hash128{get(d.hash_low), get(d.hash_high)} != chain_[i]) return std::nullopt;
    if (before.state() == BlockState::filling)
      return get(d.uid) == kAnnounced ? std::optional(Verdict::computing) : std::nullopt;
    if (before.state() != BlockState::ready) return std::nullopt;
    Verdict verdict = Verdict::present;
    if (!holds(block, i))
      verdict = Verdict::collision;
    else if (parent && get(d.parent_uid) != *parent)
      verdict = Verdict::orphaned;
    else if (!is_hinted(chain_[i], block))
      verdict = Verdict::unhinted;
    const bool is_same = word(block).generation() == before.generation();
    return is_same ? std::optional(verdict) : std::nullopt;
  }

  const DepartureRecord* last_departure(Hash128 name) const {
    const auto found = departures_.find(name.low);
    return found != departures_.end() && found->second.is_of(name) ? &found->second : nullptr;
  }

  BlockVerdict judge_by_journal(Hash128 name) const {
    const DepartureRecord* last = last_departure(name);
    if (last == nullptr) return {};
    const Verdict verdict = last->kind == Departure::retired   ? Verdict::retired
                            : last->kind == Departure::dropped ? Verdict::dropped
                                                               : Verdict::evicted;
    return {.verdict = verdict, .slot = last->slot, .unix_ms = last->unix_ms};
  }

  /// How what is on the host only has come there.
  void note_demotion(Hash128 name, BlockVerdict& verdict) const {
    if (verdict.verdict != Verdict::present ||
        verdict.blocks[std::size_t(Tier::device)] != kNullBlock)
      return;
    const DepartureRecord* last = last_departure(name);
    if (last == nullptr || last->kind != Departure::demoted) return;
    verdict.was_demoted = true;
    verdict.slot = last->slot;
    verdict.unix_ms = last->unix_ms;
  }

  void look_into_other_domains() {
    domains_.erase(domain_.value);
    for (const std::uint16_t other : domains_) {
      std::vector<Hash128> chain;
      hasher_.extend(chain, DomainId{other}, tokens_, block_tokens_);
      for (std::size_t i = 0; i < chain.size(); ++i) {
        BlockVerdict& verdict = report_.blocks[i];
        if (verdict.verdict != Verdict::never_seen) continue;
        const auto [begin, end] = by_hash_.equal_range(chain[i].low);
        const bool is_there = std::any_of(begin, end, [&](const auto& candidate) {
          const BlockId block = candidate.second;
          return word(block).state() == BlockState::ready &&
                 get(descriptor(block).hash_high) == chain[i].high && holds(block, i);
        });
        if (is_there) verdict.verdict = Verdict::other_domain, verdict.domain = other;
      }
    }
  }

  /// As engines match: the device tier first, and where it ends the host tier.
  void count_reachable() {
    const auto is_in = [&](std::size_t i, Tier tier) {
      return i < std::min(report_.blocks.size(), report_.matchable) &&
             report_.blocks[i].verdict == Verdict::present &&
             report_.blocks[i].blocks[std::size_t(tier)] != kNullBlock;
    };
    while (is_in(report_.on_device, Tier::device)) ++report_.on_device;
    while (is_in(report_.computed_from(), Tier::host)) ++report_.on_host;
  }

  const PoolMemory& memory_;
  DomainId domain_;
  std::span<const TokenId> tokens_;
  std::size_t block_tokens_;
  BlockHasher hasher_;
  PrefixIndex index_;
  MissReport report_;
  std::vector<Hash128> chain_;
  std::unordered_multimap<std::uint64_t, BlockId> by_hash_;
  std::unordered_map<std::uint64_t, DepartureRecord> departures_;
  std::set<std::uint16_t> domains_;
  /// Of the block before, as long as the way from the root leads there.
  std::optional<std::uint64_t> parent_uid_;
};

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::present: return "present";
    case Verdict::unhinted: return "unhinted";
    case Verdict::computing: return "computing";
    case Verdict::orphaned: return "orphaned";
    case Verdict::collision: return "collision";
    case Verdict::evicted: return "evicted";
    case Verdict::retired: return "retired";
    case Verdict::dropped: return "dropped";
    case Verdict::other_domain: return "other_domain";
    case Verdict::never_seen: return "never_seen";
  }
  return "unknown";
}

MissReport explain_miss(const PoolMemory& memory, DomainId domain,
                        std::span<const TokenId> tokens) {
  return Explanation(memory, domain, tokens).run();
}

}  // namespace kvhive
