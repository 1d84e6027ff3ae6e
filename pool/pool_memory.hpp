#pragma once
// The five memory objects of a pool: created once by the keeper, formatted once by the steward, and
// mapped by every process that the keeper gives their descriptors to.

#include <array>
#include <memory>
#include <optional>

#include "base/memory/memory_object.hpp"
#include "pool/block_view.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

/// The object's name, as /proc/PID/fd shows it (after "memfd:").
const char* name_of(PoolObject object);

/// Creates the objects that a geometry needs, except for a GPU's memory (device/device.hpp). All
/// their memory is allocated when this returns; nothing is mapped or written.
[[nodiscard]] Expected<PoolFds> create_pool_objects(const PoolGeometry& geometry);
/// The same for a caller that may change its mind, since hundreds of GiB take minutes.
/// \param goes_on  asked several times a second
/// \return  nothing if it did not go on
[[nodiscard]] Expected<std::optional<PoolFds>> create_pool_objects(const PoolGeometry& geometry,
                                                                   const GoesOn& goes_on);

/// The mapped pool of one process. Move-only; unmaps when dropped.
class PoolMemory {
 public:
  /// Writes an empty pool into new objects. If the steward is killed on the way, the next
  /// steward runs it again from the start.
  [[nodiscard]] static Expected<void> format(const PoolFds& fds, const PoolGeometry& geometry);

  /// Maps a formatted pool. First checks magic, version, layout hash and geometry, and compares
  /// each object's header with the pool's. With read_only access only the control and metadata
  /// objects are required. The caller maps a GPU's memory itself and then calls set_device_arena().
  [[nodiscard]] static Expected<PoolMemory> attach(const PoolFds& fds, Access access);
  void set_device_arena(std::byte* arena) { device_arena_ = arena; }

  /// Creates, formats and attaches a pool in one call, for tools and tests with a private pool.
  [[nodiscard]] static Expected<PoolMemory> create_private(const PoolGeometry& geometry);

  ControlBlock& control() const {
    return *reinterpret_cast<ControlBlock*>(at(PoolObject::control));
  }
  /// Checks the header again, as attach() does.
  [[nodiscard]] Expected<void> check_header() const;

  const PoolGeometry& geometry() const { return geometry_; }
  /// Names this pool's blocks. Valid as long as this object.
  BlockHasher hasher() const {
    return BlockHasher(control().header.secret, geometry_.hash_algorithm);
  }
  const PoolLayout& layout() const { return layout_; }

  BlockView block(BlockId block) const { return BlockView(descriptors()[block.value]); }
  TokenRow tokens_of(BlockId block) const { return {token_row(block), extra_key(block)}; }

  BlockDescriptor* descriptors() const {
    return reinterpret_cast<BlockDescriptor*>(at(PoolObject::metadata));
  }
  IndexBucket* index() const {
    return reinterpret_cast<IndexBucket*>(at(PoolObject::metadata) + layout_.index_offset);
  }
  std::atomic<std::uint64_t>* bitmap(Tier tier) const {
    return words(tier_layout(tier).bitmap_offset);
  }
  std::atomic<std::uint64_t>* summary(Tier tier) const {
    return words(tier_layout(tier).summary_offset);
  }
  std::atomic<std::uint32_t>* ring(Tier tier) const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(at(PoolObject::metadata) +
                                                         tier_layout(tier).ring_offset);
  }
  JournalRecord* journal() const {
    return reinterpret_cast<JournalRecord*>(at(PoolObject::metadata) + layout_.journal_offset);
  }
  LifeRecord* lives() const {
    return reinterpret_cast<LifeRecord*>(at(PoolObject::metadata) + layout_.lives_offset);
  }
  const PoolLayout::TierLayout& tier_layout(Tier tier) const {
    return layout_.tiers[std::size_t(tier)];
  }

  /// For processes that fork: a forked child does not get the mappings, so that it cannot write to
  /// the pool in its parent's name.
  void hide_from_children() const {
    for (const MappedMemory& map : maps_) map.hide_from_children();
  }

  /// Keeps control, metadata and token ids out of swap as long as this process lives. Error: the
  /// limit of locked memory is too low.
  [[nodiscard]] Expected<void> lock_metadata() const;

  /// What is published or found from now on begins at roots of this number.
  Resets resets() const {
    return {control().resets.load(std::memory_order_acquire) & Resets::kMost};
  }
  /// Whether a content of this uid was cached before the last reset.
  bool is_forgotten(std::uint64_t uid) const {
    return uid < control().first_uid.load(std::memory_order_relaxed);
  }
  /// The same of a published block, also of one that begins a sequence that ran then.
  bool is_forgotten(BlockView block) const {
    const std::uint64_t parent = block.parent_uid();
    return is_forgotten(block.uid()) || (parent >= kRootUid && resets_of(parent) != resets());
  }

  bool has_tokens() const { return maps_[std::size_t(PoolObject::tokens)].data() != nullptr; }
  /// Token row of a block, layout().row_words words of two tokens each.
  std::atomic<std::uint64_t>* token_row(BlockId block) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(at(PoolObject::tokens)) +
           block.value * layout_.row_words;
  }
  /// Extra key of a block, two words.
  std::atomic<std::uint64_t>* extra_key(BlockId block) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(at(PoolObject::tokens) +
                                                         layout_.extras_offset) +
           std::size_t{block.value} * 2;
  }

  /// First byte of a tier's KV; block b of the tier is at (b - first_block) * block_bytes.
  std::byte* arena(Tier tier) const {
    if (tier == Tier::host) return at(PoolObject::host);
    return is_mapped(tier) ? at(PoolObject::device) : device_arena_;
  }
  /// True = this process can access the tier's bytes. False = only its device can.
  bool is_mapped(Tier tier) const {
    return tier == Tier::host || geometry_.device == DeviceKind::cpu;
  }
  bool has_block(BlockId block) const { return block.value < geometry_.total_blocks(); }
  Tier tier_of(BlockId block) const {
    return block.value < geometry_.device_blocks ? Tier::device : Tier::host;
  }

 private:
  explicit PoolMemory(const PoolGeometry& geometry) : geometry_(geometry), layout_(geometry) {}
  std::byte* at(PoolObject object) const { return maps_[std::size_t(object)].data(); }
  ObjectHeader* object_header(PoolObject object) const {
    const std::size_t offset =
        object == PoolObject::metadata ? layout_.metadata_header : layout_.tokens_header;
    return reinterpret_cast<ObjectHeader*>(at(object) + offset);
  }
  [[nodiscard]] Expected<void> check_object(PoolObject object) const;
  void warm_up() const;

  std::atomic<std::uint64_t>* words(std::size_t offset) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(at(PoolObject::metadata) + offset);
  }

  PoolGeometry geometry_;  ///< a private copy, since the geometry in shared memory may get corrupt
  PoolLayout layout_;
  std::array<MappedMemory, kPoolObjects> maps_;
  std::byte* device_arena_ = nullptr;  ///< the GPU's arena; null on the CPU
};

}  // namespace kvhive
