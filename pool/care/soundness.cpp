#include "pool/care/soundness.hpp"

#include <bit>

namespace kvhive {
namespace {

std::uint64_t get(const std::atomic<std::uint64_t>& field) {
  return field.load(std::memory_order_relaxed);
}

}  // namespace

Soundness::Soundness(const PoolMemory& memory)
    : memory_(memory), hasher_(memory.control().header.secret) {
  for (std::uint32_t id = 1; id < memory_.geometry().total_blocks(); ++id) {
    const BlockId block{id};
    if (word(block).state() != BlockState::ready) continue;
    ready_.push_back(block);
    const auto [first, is_new] = by_uid_.emplace(get(descriptor(block).uid), block);
    if (!is_new && name_of(first->second) != name_of(block))
      rival_.insert_or_assign(first->second, block);
  }
}

Hash128 Soundness::name_of(BlockId block) const {
  return {get(descriptor(block).hash_low), get(descriptor(block).hash_high)};
}

std::vector<std::string> Soundness::word_faults(BlockId block, BlockWord w,
                                                std::uint32_t attached) {
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
  if ((w.bits >> 35 & 1) != 0) faults.push_back("has the spare bit of its word set");
  if (const std::uint32_t strangers = holders & ~attached; strangers != 0)
    faults.push_back("is held by slots nobody is attached to, mask " + std::to_string(strangers));
  return faults;
}

/// Runs `look` and says whether the block stayed the same published one meanwhile.
template <class Look>
bool Soundness::stably(BlockId block, Look&& look) const {
  const BlockWord before = word(block);
  if (before.state() != BlockState::ready) return false;
  look();
  std::atomic_thread_fence(std::memory_order_acquire);
  const BlockWord after = word(block);
  return after.state() == BlockState::ready && after.generation() == before.generation();
}

std::vector<std::string> Soundness::identity_faults(BlockId block) {
  std::vector<std::string> faults;
  was_orphan_ = false;
  if (!stably(block, [&] { faults = faults_now(block); })) return {};
  orphans_ += was_orphan_;
  return faults;
}

bool Soundness::has_future_stamp(BlockId block) const {
  const auto& tier = memory_.control().tiers[std::size_t(memory_.tier_of(block))];
  const std::uint64_t stamp = get(descriptor(block).stamp);
  return word(block).state() == BlockState::ready && stamp >= get(tier.tail);
}

std::vector<std::string> Soundness::faults_now(BlockId block) {
  std::vector<std::string> faults;
  const BlockDescriptor& d = descriptor(block);
  const std::uint64_t uid = get(d.uid), parent_uid = get(d.parent_uid), serial = get(d.serial);
  if (uid == 0 || uid >= get(memory_.control().next_serial))
    faults.push_back("has uid " + std::to_string(uid) + ", which was never given out");
  else if (serial < uid || serial >= get(memory_.control().next_serial))
    faults.push_back("has serial " + std::to_string(serial) +
                     ", which was not given out with uid " + std::to_string(uid));
  if (d.group.load(std::memory_order_relaxed) != 0)
    faults.push_back("is of group " + std::to_string(d.group.load(std::memory_order_relaxed)) +
                     ", which does not exist");
  if (d.has_extra.load(std::memory_order_relaxed) > 1)
    faults.push_back("neither has nor lacks an extra key");
  if (memory_.has_tokens() && d.has_extra.load(std::memory_order_relaxed) == 1 &&
      get(memory_.extra_key(block)[0]) == 0 && get(memory_.extra_key(block)[1]) == 0)
    faults.push_back("has an extra key that says nothing");
  if (parent_uid < kRootUid && parent_uid >= uid)
    faults.push_back("has uid " + std::to_string(uid) + ", older than its parent's " +
                     std::to_string(parent_uid));
  if (const auto parent = parent_of(d, parent_uid))
    compare_with_parent(block, *parent, faults);
  else
    was_orphan_ = true;
  compare_with_twin(block, uid, faults);
  return faults;
}

void Soundness::compare_with_parent(BlockId block, const Parent& parent,
                                    std::vector<std::string>& faults) {
  const BlockDescriptor& d = descriptor(block);
  const std::uint64_t parent_uid = get(d.parent_uid);
  const std::uint16_t domain = d.domain.load(std::memory_order_relaxed);
  const std::uint32_t depth = d.depth.load(std::memory_order_relaxed);
  if (parent_uid >= kRootUid && parent_uid != (kRootUid | domain))
    faults.push_back("starts from the root of no domain, " + std::to_string(parent_uid));
  if (domain != parent.domain)
    faults.push_back("is in domain " + std::to_string(domain) + ", its parent in " +
                     std::to_string(parent.domain));
  if (depth != parent.depth)
    faults.push_back("is at depth " + std::to_string(depth) + ", not at " +
                     std::to_string(parent.depth) + ", after its parent");
  if (memory_.has_tokens() && !hash_fits(block, parent.name))
    faults.push_back("does not hash to its name: tokens, parent or hash are damaged");
}

/// Two blocks with one uid hold the same content, so they have the same name and the same past.
/// Which of the two is damaged nobody can tell: it is said of both.
void Soundness::compare_with_twin(BlockId block, std::uint64_t uid,
                                  std::vector<std::string>& faults) const {
  BlockId twin = bearer_of(uid);
  if (const auto rival = rival_.find(block); twin == block && rival != rival_.end())
    twin = rival->second;
  if (twin == block || twin == kNullBlock) return;
  std::uint64_t twins_uid = 0, twins_parent = 0;
  Hash128 twins_name;
  const bool is_stable = stably(twin, [&] {
    twins_uid = get(descriptor(twin).uid);
    twins_parent = get(descriptor(twin).parent_uid);
    twins_name = name_of(twin);
  });
  if (!is_stable || twins_uid != uid) return;
  const std::string with =
      "shares uid " + std::to_string(uid) + " with block " + std::to_string(twin.value);
  if (twins_parent != get(descriptor(block).parent_uid))
    faults.push_back(with + " but not its parent");
  else if (twins_name != name_of(block))
    faults.push_back(with + " but not its name");
}

/// The block that bore this uid when we began; it may have been given out anew since.
BlockId Soundness::bearer_of(std::uint64_t uid) const {
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? kNullBlock : found->second;
}

std::optional<Soundness::Parent> Soundness::parent_of(const BlockDescriptor& d,
                                                      std::uint64_t parent_uid) const {
  if (parent_uid >= kRootUid) {
    const std::uint16_t domain = d.domain.load(std::memory_order_relaxed);
    return Parent{hasher_.root(DomainId{domain}), 0, domain};
  }
  const BlockId bearer = bearer_of(parent_uid);
  if (bearer == kNullBlock) return std::nullopt;
  const BlockDescriptor& p = descriptor(bearer);
  Parent parent;
  std::uint64_t uid = 0;
  const bool is_stable = stably(bearer, [&] {
    parent = {name_of(bearer), p.depth.load(std::memory_order_relaxed) + 1,
              p.domain.load(std::memory_order_relaxed)};
    uid = get(p.uid);
  });
  if (!is_stable || uid != parent_uid) return std::nullopt;
  return parent;
}

bool Soundness::hash_fits(BlockId block, Hash128 parent) {
  const std::size_t count = memory_.geometry().tokens_per_block;
  std::vector<TokenId> tokens(count);
  const auto* row = memory_.token_row(block);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<TokenId>(get(row[i / 2]) >> (i % 2 == 0 ? 0 : 32));
  const auto* key = memory_.extra_key(block);
  const ExtraKey extra = descriptor(block).has_extra.load(std::memory_order_relaxed) != 0
                             ? ExtraKey{get(key[0]), get(key[1])}
                             : kNoExtraKey;
  bytes_checked_ += count * sizeof(TokenId);
  return hasher_.child(parent, tokens, extra) == name_of(block);
}

}  // namespace kvhive
