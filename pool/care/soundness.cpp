#include "pool/care/soundness.hpp"

#include <bit>

namespace kvhive {
Soundness::Soundness(const PoolMemory& memory) : memory_(memory), hasher_(memory.hasher()) {
  for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
    const BlockId block{id};
    const BlockView b = memory.block(block);
    if (!b.word().is_ready()) continue;
    ready_.push_back(block);
    const auto [first, is_new] = by_uid_.emplace(b.uid(), block);
    if (!is_new && memory.block(first->second).name() != b.name())
      rival_.insert_or_assign(first->second, block);
  }
}

std::vector<std::string> Soundness::word_faults(BlockId block, BlockWord w, std::uint32_t attached,
                                                EvictionPolicy policy) {
  std::vector<std::string> faults;
  const std::uint32_t holders = w.holders();
  switch (w.state()) {
    case BlockState::free:
      if (holders != 0) faults.push_back("is free but held by mask " + std::to_string(holders));
      break;
    case BlockState::filling:
      if (std::popcount(holders) != 1)
        faults.push_back("is being filled by " + std::to_string(std::popcount(holders)) +
                         " processes, not one");
      break;
    case BlockState::ready: break;
    case BlockState::retired:
      if (holders != 0) faults.push_back("is retired but held by mask " + std::to_string(holders));
      break;
    default: faults.push_back("is in unknown state " + std::to_string(int(w.state())));
  }
  if (block == kNullBlock && w.state() != BlockState::retired)
    faults.push_back("is the null block but not set aside");
  if ((w.stray_bits(policy) & BlockWord::kHit) != 0)
    faults.push_back("is marked as hit, which nobody does " +
                     std::string(w.is_ready() ? "in this pool" : "before it is published"));
  if (const std::uint32_t strangers = holders & ~attached; strangers != 0)
    faults.push_back("is held by slots nobody is attached to, mask " + std::to_string(strangers));
  return faults;
}

std::vector<std::string> Soundness::identity_faults(BlockId block) {
  std::vector<std::string> faults;
  was_orphan_ = false;
  if (!read_stably(memory_.block(block), [&] { faults = faults_now(block); })) return {};
  orphans_ += was_orphan_;
  return faults;
}

bool Soundness::has_future_stamp(BlockId block) const {
  const auto& tier = memory_.control().tiers[std::size_t(memory_.tier_of(block))];
  const std::uint64_t stamp = memory_.block(block).stamp();
  return memory_.block(block).word().is_ready() && stamp >= tier.tail.load(relaxed);
}

std::vector<std::string> Soundness::faults_now(BlockId block) {
  std::vector<std::string> faults;
  const BlockView b = memory_.block(block);
  const std::uint64_t uid = b.uid(), parent_uid = b.parent_uid(), serial = b.serial();
  if (uid == 0 || uid >= memory_.control().next_serial.load(relaxed))
    faults.push_back("has uid " + std::to_string(uid) + ", which was never given out");
  else if (serial < uid || serial >= memory_.control().next_serial.load(relaxed))
    faults.push_back("has serial " + std::to_string(serial) +
                     ", which was not given out with uid " + std::to_string(uid));
  const GroupId group = b.group();
  if (!memory_.geometry().has(group)) {
    faults.push_back("is of group " + std::to_string(group.value) + ", which does not exist");
    return faults;
  }
  if (memory_.has_tokens() && b.has_extra() && is_none(memory_.tokens_of(block).extra_key()))
    faults.push_back("has an extra key that says nothing");
  if (parent_uid < kRootUid && parent_uid >= uid)
    faults.push_back("has uid " + std::to_string(uid) + ", older than its parent's " +
                     std::to_string(parent_uid));
  if (const auto parent = parent_of(b, parent_uid))
    compare_with_parent(block, group, *parent, faults);
  else
    was_orphan_ = true;
  compare_with_twin(block, uid, faults);
  return faults;
}

void Soundness::compare_with_parent(BlockId block, GroupId group, const Parent& parent,
                                    std::vector<std::string>& faults) {
  const BlockView b = memory_.block(block);
  const std::uint64_t parent_uid = b.parent_uid();
  const std::uint16_t domain = b.domain().value;
  const std::uint32_t depth = b.depth();
  const bool is_chained = memory_.geometry().group(group).kind == CacheKind::full;
  if (parent_uid >= kRootUid && (parent_uid != root_uid(b.domain(), group, resets_of(parent_uid)) ||
                                 resets_of(parent_uid) > memory_.resets()))
    faults.push_back("starts from the root of no domain, " + std::to_string(parent_uid));
  if (parent_uid < kRootUid && !is_chained)
    faults.push_back("has a parent, which blocks of group " + std::to_string(group.value) +
                     " do not have");
  // A group that does not exist is a fault of the parent's.
  if (group != parent.group && memory_.geometry().has(parent.group))
    faults.push_back("is of group " + std::to_string(group.value) + ", its parent of " +
                     std::to_string(parent.group.value));
  if (domain != parent.domain)
    faults.push_back("is in domain " + std::to_string(domain) + ", its parent in " +
                     std::to_string(parent.domain));
  if (is_chained && depth != parent.depth)
    faults.push_back("is at depth " + std::to_string(depth) + ", not at " +
                     std::to_string(parent.depth) + ", after its parent");
  if (memory_.has_tokens() && !hash_fits(block, group, parent.name))
    faults.push_back("does not hash to its name: tokens, parent or hash are damaged");
}

/// Compares with another block of the same uid, if there is one. Two blocks with the same uid hold
/// the same content, so they have the same name and the same parent. If they do not, one of them is
/// corrupt, but it is unknown which, so both are reported.
void Soundness::compare_with_twin(BlockId block, std::uint64_t uid,
                                  std::vector<std::string>& faults) const {
  BlockId twin = block_with(uid);
  if (const auto rival = rival_.find(block); twin == block && rival != rival_.end())
    twin = rival->second;
  if (twin == block || twin == kNullBlock) return;
  std::uint64_t twins_uid = 0, twins_parent = 0;
  Hash128 twins_name;
  const BlockView t = memory_.block(twin);
  const bool is_stable = read_stably(t, [&] {
    twins_uid = t.uid();
    twins_parent = t.parent_uid();
    twins_name = t.name();
  });
  if (!is_stable || twins_uid != uid) return;
  const std::string with =
      "shares uid " + std::to_string(uid) + " with block " + std::to_string(twin.value);
  if (twins_parent != memory_.block(block).parent_uid())
    faults.push_back(with + " but not its parent");
  else if (twins_name != memory_.block(block).name())
    faults.push_back(with + " but not its name");
}

/// The first block that had this uid when the constructor read it; it may have been taken since.
BlockId Soundness::block_with(std::uint64_t uid) const {
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? kNullBlock : found->second;
}

std::optional<Soundness::Parent> Soundness::parent_of(BlockView block,
                                                      std::uint64_t parent_uid) const {
  if (parent_uid >= kRootUid) {
    const DomainId domain = block.domain();
    const GroupId group = block.group();
    return Parent{hasher_.root(domain, group), 0, domain.value, group};
  }
  const BlockId found = block_with(parent_uid);
  if (found == kNullBlock) return std::nullopt;
  const BlockView p = memory_.block(found);
  Parent parent;
  std::uint64_t uid = 0;
  const bool is_stable = read_stably(p, [&] {
    parent = {p.name(), p.depth() + 1, p.domain().value, p.group()};
    uid = p.uid();
  });
  if (!is_stable || uid != parent_uid) return std::nullopt;
  return parent;
}

bool Soundness::hash_fits(BlockId block, GroupId group, Hash128 parent) {
  const PoolGeometry& geometry = memory_.geometry();
  const std::size_t count = geometry[geometry.model_of(group)].tokens_per_block;
  const BlockView b = memory_.block(block);
  const TokenRow row = memory_.tokens_of(block);
  const ExtraKey extra = b.has_extra() ? row.extra_key() : kNoExtraKey;
  bytes_checked_ += count * sizeof(TokenId);
  return hasher_.child(parent, row.read(count), extra) == b.name();
}

}  // namespace kvhive
