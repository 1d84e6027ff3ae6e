#include "pool/care/miss_report.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "hashing/cache_salt.hpp"
#include "hashing/sequence_names.hpp"
#include "pool/prefix_index.hpp"

namespace kvhive {
namespace {

class Explanation {
 public:
  Explanation(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens,
              const ExtraKey& salt, ModelId model)
      : memory_(memory),
        model_(model),
        domain_(domain),
        tokens_(tokens),
        salt_(salt),
        block_tokens_(memory.geometry()[model].tokens_per_block),
        hasher_(memory.hasher()),
        index_(memory.index(), memory.layout().index_buckets),
        names_(memory.geometry()[model].groups, domain, block_tokens_, salt) {}

  MissReport run() {
    collect_blocks();
    const EvictionJournal journal(memory_);
    for (const DepartureRecord& record : journal.read())
      departures_.insert_or_assign(record.hash_low, record);
    report_.has_forgotten = journal.has_forgotten();
    report_.matchable = tokens_.empty() ? 0 : (tokens_.size() - 1) / block_tokens_;

    names_.extend(hasher_, tokens_);
    for (std::size_t g = 0; g < groups().count; ++g) explain_group(groups().id(g));
    search_other_domains();
    search_other_salts();
    find_hit();
    return std::move(report_);
  }

 private:
  const CacheGroups& groups() const { return memory_.geometry()[model_].groups; }
  std::size_t place(GroupId group, std::size_t i) const {
    return groups().place(group) * names_.blocks() + i;
  }
  const BlockStatus& status(GroupId group, std::size_t i) const {
    return report_.blocks[place(group, i)];
  }

  void explain_group(GroupId group) {
    parent_uid_ = root_uid(domain_, group, memory_.resets());
    for (std::size_t i = 0; i < names_.blocks(); ++i) {
      BlockStatus status = status_at(group, i);
      status.group = group;
      status.index = i;
      report_.blocks.push_back(status);
      if (!groups().is_chained(group)) parent_uid_ = root_uid(domain_, group, memory_.resets());
    }
    device_runs_.push_back(device_run(group));
  }

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

  /// Whether a block holds the prompt's i-th block, as named in `names`.
  bool holds(BlockId block, const SequenceNames& names, GroupId group, std::size_t i) const {
    const TokenRow row = memory_.tokens_of(block);
    if (!row.holds(tokens_.subspan(i * block_tokens_, block_tokens_))) return false;
    const auto extras = names.extras(group);
    return extra_of(block) == (extras.empty() ? kNoExtraKey : extras[i]);
  }

  ExtraKey extra_of(BlockId block) const {
    return view(block).has_extra() ? memory_.tokens_of(block).extra_key() : kNoExtraKey;
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
  BlockStatus status_at(GroupId group, std::size_t i) {
    const Hash128 name = names_.names(group)[i];
    BlockStatus best = status_by_journal(name);
    std::array<std::uint64_t, kTiers> serials{~0ull, ~0ull};
    const auto [begin, end] = by_hash_.equal_range(name.low);
    const std::optional<std::uint64_t> parent = parent_uid_;
    parent_uid_.reset();
    for (auto candidate = begin; candidate != end; ++candidate) {
      const BlockId block = candidate->second;
      const auto status = status_of(block, group, i, parent);
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
    note_demotion(name, best);
    return best;
  }

  /// The status of one block that has the hash of the prompt's i-th block. Nothing if the block's
  /// name differs after all, or the block was taken while it was read.
  std::optional<CacheStatus> status_of(BlockId block, GroupId group, std::size_t i,
                                       std::optional<std::uint64_t> parent) const {
    const Hash128 name = names_.names(group)[i];
    const BlockView b = view(block);
    const BlockWord before = b.word();
    if (b.name() != name) return std::nullopt;
    if (before.state() == BlockState::filling)
      return b.uid() == kAnnounced ? std::optional(CacheStatus::computing) : std::nullopt;
    if (!before.is_ready()) return std::nullopt;
    CacheStatus status = CacheStatus::present;
    if (!holds(block, names_, group, i))
      status = CacheStatus::collision;
    else if (memory_.is_forgotten(b))
      status = CacheStatus::forgotten;
    else if (parent && b.parent_uid() != *parent)
      status = CacheStatus::orphaned;
    else if (!is_hinted(name, block))
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
    if (names_.blocks() == 0) return;
    std::set<ExtraKey> salts;
    for (const auto& [hash, block] : by_hash_) {
      const BlockView b = view(block);
      if (!b.word().is_ready() || b.depth() != 0 || b.domain() != domain_) continue;
      if (memory_.geometry().model_of(b.group()) != model_) continue;
      if (!memory_.tokens_of(block).holds(tokens_.first(block_tokens_))) continue;
      if (const ExtraKey salt = extra_of(block); salt != salt_) salts.insert(salt);
    }
    for (const ExtraKey& salt : salts) search(domain_, salt, CacheStatus::other_salt);
  }

  /// Gives the status to all blocks of the prompt that were never seen and are published there.
  void search(DomainId domain, const ExtraKey& salt, CacheStatus status) {
    SequenceNames names(groups(), domain, block_tokens_, salt);
    names.extend(hasher_, tokens_);
    for (BlockStatus& block : report_.blocks) {
      if (block.status != CacheStatus::never_seen || !is_published(names, block)) continue;
      block.status = status;
      block.domain = domain;
    }
  }

  /// Whether any published block has the name and the content of one of the prompt's blocks.
  bool is_published(const SequenceNames& names, const BlockStatus& block) const {
    const Hash128 name = names.names(block.group)[block.index];
    const auto [begin, end] = by_hash_.equal_range(name.low);
    return std::any_of(begin, end, [&](const auto& candidate) {
      const BlockView b = view(candidate.second);
      return b.word().is_ready() && b.name() == name &&
             holds(candidate.second, names, block.group, block.index);
    });
  }

  /// The tier from which a match takes a block, if it finds it. In a group of full attention it
  /// takes nothing from the device tier behind the first block that is missing there.
  std::optional<Tier> tier_of(GroupId group, std::size_t i) const {
    const BlockStatus& block = status(group, i);
    if (block.status != CacheStatus::present) return std::nullopt;
    const bool may_be_on_device =
        !groups().is_chained(group) || i < device_runs_[groups().place(group)];
    if (may_be_on_device && block.blocks[std::size_t(Tier::device)] != kNullBlock)
      return Tier::device;
    if (block.blocks[std::size_t(Tier::host)] != kNullBlock) return Tier::host;
    return std::nullopt;
  }

  /// How many blocks from the start on the device tier has.
  std::size_t device_run(GroupId group) const {
    std::size_t end = 0;
    const auto is_there = [&](const BlockStatus& block) {
      return block.status == CacheStatus::present &&
             block.blocks[std::size_t(Tier::device)] != kNullBlock;
    };
    while (end < names_.blocks() && is_there(status(group, end))) ++end;
    return end;
  }

  /// Where an engine would begin to compute, and which block keeps it from beginning later.
  void find_hit() {
    const std::size_t most = std::min(names_.blocks(), report_.matchable);
    const std::size_t hit =
        longest_hit(groups(), most, block_tokens_, [&](std::size_t g, std::size_t i) {
          return tier_of(groups().id(g), i).has_value();
        }).blocks;
    report_.computed_from = hit;
    for (std::size_t g = 0; g < groups().count; ++g) {
      const GroupId group = groups().id(g);
      for (std::size_t i = groups()[group].first_block(hit * block_tokens_, block_tokens_); i < hit;
           ++i)
        ++(tier_of(group, i) == Tier::device ? report_.on_device : report_.on_host);
      const std::size_t next =
          groups()[group].first_block((hit + 1) * block_tokens_, block_tokens_);
      for (std::size_t i = next; i <= hit && hit < most && !report_.decisive; ++i)
        if (!tier_of(group, i)) report_.decisive = place(group, i);
    }
  }

  const PoolMemory& memory_;
  ModelId model_;
  DomainId domain_;
  std::span<const TokenId> tokens_;
  ExtraKey salt_;
  std::size_t block_tokens_;
  BlockHasher hasher_;
  PrefixIndex index_;
  MissReport report_;
  SequenceNames names_;
  std::unordered_multimap<std::uint64_t, BlockId> by_hash_;
  std::unordered_map<std::uint64_t, DepartureRecord> departures_;
  std::set<DomainId> domains_;
  std::vector<std::size_t> device_runs_;  ///< by group: blocks from the start on in the device tier
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
    case CacheStatus::forgotten: return "forgotten";
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
                        std::string_view cache_salt, std::string_view adapter, ModelId model) {
  return Explanation(memory, domain, tokens, start_key(cache_salt, adapter), model).run();
}

}  // namespace kvhive
