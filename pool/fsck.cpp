#include "pool/fsck.hpp"

#include <bit>
#include <optional>
#include <unordered_map>

namespace kvhive {
namespace {

constexpr std::size_t kMostViolations = 100;

class Check {
 public:
  explicit Check(const PoolMemory& memory) : memory_(memory), hasher_(memory.control().secret) {}

  FsckReport run() {
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
      if (memory_.control().processes[slot].pid.load(std::memory_order_acquire) != 0)
        attached_ |= 1u << slot;
    for (std::uint32_t id = 0; id < memory_.geometry().total_blocks(); ++id)
      check_word(BlockId{id});
    index_uids();
    for (const BlockId block : ready_) check_identity(block);
    check_index();
    check_order();
    report_.ready = ready_.size();
    return std::move(report_);
  }

 private:
  void violation(BlockId block, const std::string& text) {
    violation("block " + std::to_string(block.value) + " " + text);
  }
  void violation(std::string text) {
    if (report_.violations.size() < kMostViolations) report_.violations.push_back(std::move(text));
  }

  const BlockDescriptor& descriptor(BlockId block) const {
    return memory_.descriptors()[block.value];
  }
  BlockWord word(BlockId block) const {
    return {descriptor(block).word.load(std::memory_order_acquire)};
  }
  static std::uint64_t get(const std::atomic<std::uint64_t>& field) {
    return field.load(std::memory_order_relaxed);
  }

  void check_word(BlockId block) {
    ++report_.blocks_checked;
    const BlockWord w = word(block);
    const std::uint32_t holders = w.holders();
    switch (w.state()) {
      case BlockState::free:
        if (holders != 0) violation(block, "is free but held by mask " + std::to_string(holders));
        break;
      case BlockState::filling:
        if (std::popcount(holders) != 1)
          violation(block, "is being filled by " + std::to_string(std::popcount(holders)) +
                               " processes, not one");
        break;
      case BlockState::ready: ready_.push_back(block); break;
      case BlockState::retired: break;
      default: violation(block, "is in unknown state " + std::to_string(int(w.state())));
    }
    if (block == kNullBlock && w.state() != BlockState::retired)
      violation(block, "is the null block but not set aside");
    if (const std::uint32_t strangers = holders & ~attached(); strangers != 0)
      violation(block, "is held by slots nobody is attached to, mask " + std::to_string(strangers));
  }

  /// Slots in use, including any attached since we began.
  std::uint32_t attached() {
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
      if (memory_.control().processes[slot].pid.load(std::memory_order_acquire) != 0)
        attached_ |= 1u << slot;
    return attached_;
  }

  void index_uids() {
    for (const BlockId block : ready_) by_uid_.emplace(get(descriptor(block).uid), block);
  }

  /// Runs `look` and says whether the block stayed the same published one meanwhile.
  template <class Look>
  bool stably(BlockId block, Look&& look) {
    const BlockWord before = word(block);
    if (before.state() != BlockState::ready) return false;
    look();
    std::atomic_thread_fence(std::memory_order_acquire);
    const BlockWord after = word(block);
    return after.state() == BlockState::ready && after.generation() == before.generation();
  }

  void check_identity(BlockId block) {
    std::vector<std::string> found;
    const bool is_stable = stably(block, [&] { found = identity_faults(block); });
    if (!is_stable) return;
    for (const std::string& fault : found) violation(block, fault);
  }

  std::vector<std::string> identity_faults(BlockId block) {
    std::vector<std::string> faults;
    const BlockDescriptor& d = descriptor(block);
    const std::uint64_t uid = get(d.uid), parent = get(d.parent_uid);
    if (uid == 0 || uid >= memory_.control().next_serial.load(std::memory_order_relaxed))
      faults.push_back("has uid " + std::to_string(uid) + ", which was never given out");
    if (get(d.stamp) >= tier_control(block).tail.load(std::memory_order_relaxed))
      faults.push_back("has a release stamp from the future, " + std::to_string(get(d.stamp)));
    const auto parent_hash = hash_of_parent(d, parent);
    if (!parent_hash) {
      ++report_.orphans;
    } else if (memory_.has_tokens() && !hash_fits(block, *parent_hash)) {
      faults.push_back("does not hash to its name: tokens, parent or hash are damaged");
    }
    if (const BlockId twin = bearer_of(uid); twin != block && twin != kNullBlock) {
      std::uint64_t twins_uid = 0, twins_parent = 0;
      const bool is_stable = stably(twin, [&] {
        twins_uid = get(descriptor(twin).uid);
        twins_parent = get(descriptor(twin).parent_uid);
      });
      if (is_stable && twins_uid == uid && twins_parent != parent)
        faults.push_back("shares uid " + std::to_string(uid) + " with block " +
                         std::to_string(twin.value) + " but not its parent");
    }
    return faults;
  }

  /// The block that bore this uid when we began; it may have been given out anew since.
  BlockId bearer_of(std::uint64_t uid) const {
    const auto found = by_uid_.find(uid);
    return found == by_uid_.end() ? kNullBlock : found->second;
  }

  const TierControl& tier_control(BlockId block) const {
    return memory_.control().tiers[std::size_t(memory_.tier_of(block))];
  }

  std::optional<Hash128> hash_of_parent(const BlockDescriptor& d, std::uint64_t parent) {
    if (parent >= kRootUid) return hasher_.root(DomainId{d.domain.load(std::memory_order_relaxed)});
    const BlockId bearer = bearer_of(parent);
    const BlockDescriptor& p = descriptor(bearer);
    Hash128 hash;
    std::uint64_t uid = 0;
    const bool is_stable = bearer != kNullBlock && stably(bearer, [&] {
                             hash = {get(p.hash_low), get(p.hash_high)};
                             uid = get(p.uid);
                           });
    if (!is_stable || uid != parent) return std::nullopt;
    return hash;
  }

  bool hash_fits(BlockId block, Hash128 parent) {
    const std::size_t count = memory_.geometry().tokens_per_block;
    std::vector<TokenId> tokens(count);
    const auto* row = memory_.token_row(block);
    for (std::size_t i = 0; i < count; ++i)
      tokens[i] = static_cast<TokenId>(get(row[i / 2]) >> (i % 2 == 0 ? 0 : 32));
    const auto* key = memory_.extra_key(block);
    const BlockDescriptor& d = descriptor(block);
    const ExtraKey extra = d.has_extra.load(std::memory_order_relaxed) != 0
                               ? ExtraKey{get(key[0]), get(key[1])}
                               : kNoExtraKey;
    report_.bytes_checked += count * sizeof(TokenId);
    return hasher_.child(parent, tokens, extra) == Hash128{get(d.hash_low), get(d.hash_high)};
  }

  void check_index() {
    std::vector<bool> hinted(memory_.geometry().total_blocks());
    for (std::size_t b = 0; b < memory_.layout().index_buckets; ++b) {
      for (const auto& way : memory_.index()[b].way) {
        const BlockId block{std::uint32_t(get(way))};
        if (!memory_.has_block(block))
          violation("index bucket " + std::to_string(b) + " points at block " +
                    std::to_string(block.value) + ", beyond the pool");
        else
          hinted[block.value] = true;
      }
    }
    for (const BlockId block : ready_) report_.unhinted += !hinted[block.value];
  }

  void check_order() {
    for (const Tier tier : {Tier::device, Tier::host}) {
      const TierControl& control = memory_.control().tiers[std::size_t(tier)];
      const auto head = get(control.head), tail = get(control.tail);
      if (head > tail)
        violation("the " + std::string(to_string(tier)) + " tier's release order starts at " +
                  std::to_string(head) + ", after its end " + std::to_string(tail));
    }
  }

  const PoolMemory& memory_;
  BlockHasher hasher_;
  FsckReport report_;
  std::uint32_t attached_ = 0;
  std::vector<BlockId> ready_;
  std::unordered_map<std::uint64_t, BlockId> by_uid_;
};

}  // namespace

FsckReport fsck(const PoolMemory& memory) { return Check(memory).run(); }

}  // namespace kvhive
