#pragma once
// The memory layout of the pool: which byte lies where in its five memory objects. The types here
// live in shared memory: standard layout, no pointers, fixed-width integers, lock-free atomics.
// Increment kFormatVersion whenever a byte moves.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "config/pool_geometry.hpp"
#include "hashing/block_hash.hpp"
#include "pool/block_word.hpp"
#include "pool/counters.hpp"

namespace kvhive {

inline constexpr std::uint64_t kPoolMagic = 0x3165766968766bull;  // "kvhive1"
inline constexpr std::uint32_t kFormatVersion = 19;
inline constexpr std::uint64_t kFormatted = 0x6465'7474'616d'726full;  // "ormatted"
/// Of what orders nothing: counters, hints, and words that nobody reads meanwhile.
inline constexpr auto relaxed = std::memory_order_relaxed;

/// Serials, uids and stamps count from 1 and never reach this number. A value from here on is
/// corrupt.
inline constexpr std::uint64_t kImplausible = 1ull << 62;

/// Where a block's bytes are. Host blocks have higher ids than device blocks.
enum class Tier : std::uint8_t { device = 0, host = 1 };
inline constexpr std::size_t kTiers = 2;
constexpr std::string_view to_string(Tier tier) { return tier == Tier::device ? "device" : "host"; }

/// One block's metadata, in one cache line. All fields but `word` and `stamp` are written by the
/// block's holder while the block is filling, and are constant while it is ready. So no crash can
/// leave them half written in a published block.
struct alignas(64) BlockDescriptor {
  std::atomic<std::uint64_t> word;  ///< BlockWord
  /// Place in the release order; idle blocks are evicted by ascending stamp.
  std::atomic<std::uint64_t> stamp;
  /// The name: a chained hash, by which the index finds the block.
  std::atomic<std::uint64_t> hash_low;
  std::atomic<std::uint64_t> hash_high;
  /// Identity of the content, never reused. Blocks with equal content have the uid of the block
  /// that was published first. While the block is filling: kAnnounced if the name is already that
  /// of the new content, or 0 if it may still be that of the old content.
  std::atomic<std::uint64_t> uid;
  /// Uid of the block before this one, or the root of domain and group: of a sequence's first
  /// block, and of all blocks of a group whose blocks are found without those before them.
  std::atomic<std::uint64_t> parent_uid;
  /// Drawn at publication. A match finds, among blocks of equal content, the one with the lowest
  /// serial.
  std::atomic<std::uint64_t> serial;
  std::atomic<std::uint32_t> depth;  ///< blocks before this one in its sequence
  /// The domain whose bytes are in the block. It stays when the block is freed, evicted or taken
  /// from a dead process, so that a process that takes the block for another domain knows that it
  /// must zero the block.
  std::atomic<std::uint16_t> domain;
  std::atomic<std::uint8_t> group;  ///< a GroupId (config/cache_groups.hpp)
  /// Bit 0: it has an extra key, which is in the tokens object. The other bits: the slot of the
  /// process that wrote all this; they are for statistics only.
  std::atomic<std::uint8_t> traits;
};
static_assert(sizeof(BlockDescriptor) == 64 && std::is_standard_layout_v<BlockDescriptor>);

/// Parent uids from here on are roots. Uids of contents are serials, which never reach this number.
inline constexpr std::uint64_t kRootUid = 1ull << 63;
/// How often the prefix cache has been reset (pool/care/cache_reset.hpp). Each reset makes all
/// roots anew: contents behind older ones are found no more.
struct Resets {
  static constexpr std::uint32_t kMost = (1u << 31) - 1;
  std::uint32_t value = 0;
  friend auto operator<=>(const Resets&, const Resets&) = default;
};
/// The parent uid of a sequence's first block.
constexpr std::uint64_t root_uid(DomainId domain, GroupId group, Resets resets) {
  return kRootUid | std::uint64_t{resets.value} << 32 | std::uint64_t{group.value} << 16 |
         domain.value;
}
constexpr Resets resets_of(std::uint64_t root) {
  return {static_cast<std::uint32_t>(root >> 32) & Resets::kMost};
}
/// Stands in place of a uid while the block's content is being computed (BlockDescriptor::uid).
inline constexpr std::uint64_t kAnnounced = ~0ull;

/// The counters of one process slot. Only the slot's process writes them, and the reaper once that
/// process is dead. They are statistics: no decision about a block depends on them.
struct alignas(64) SlotCounters {
  /// Per tier: +1 each time this process changes a block's holder mask from empty to not empty, -1
  /// each time it changes one from not empty to empty. This is not the number of blocks that the
  /// process holds, since one process may add a block and another process subtract it. Only the sum
  /// over all slots has a meaning (pool/tier_counters.hpp), so it is never reset.
  std::array<std::atomic<std::int64_t>, kTiers> used;
  std::array<std::atomic<std::uint64_t>, kCounters.size()> values;
  /// Of all histograms, one after the other (kHistogramCells).
  alignas(64) std::array<std::atomic<std::uint64_t>, kAllHistogramCells> cells;

  std::atomic<std::uint64_t>& operator[](CounterName name) { return values[name.place()]; }
  void observe(HistogramName name, std::uint64_t value) {
    const std::span<const std::uint64_t> edges = kHistograms[name.place()].edges;
    const auto edge = std::lower_bound(edges.begin(), edges.end(), value);
    std::atomic<std::uint64_t>* first = cells.data() + kHistogramCells[name.place()];
    bump(first[edge - edges.begin()], 1);
    bump(first[edges.size() + 1], value);
  }
};

/// Lanes of a tier: one for each domain whose blocks are counted, or for each model, and lane 0 for
/// all others (pool/eviction/lanes.hpp).
inline constexpr std::size_t kMostLanes = std::max(kLimitedDomains, kMostModels) + 1;

/// What one process slot has counted of one lane of the device tier (pool/eviction/lanes.hpp).
/// `cached` and `idle` are modulo 2^32; only their sums over all slots have a meaning, so they are
/// never reset.
struct LaneCounters {
  /// +1 each time this process publishes a block, -1 each time it evicts one.
  std::atomic<std::uint32_t> cached;
  /// +1 each time it drops the last reference to a published block, -1 each time it pins or evicts
  /// a block that no process holds.
  std::atomic<std::uint32_t> idle;
  /// How many blocks this process is filling. No other process changes such a block, so this is the
  /// number itself. 0 when the slot has no process.
  std::atomic<std::uint32_t> filling;
};

/// One process slot. The keeper decides which process has which slot; `pid` is only for display.
struct alignas(64) ProcessEntry {
  std::atomic<std::uint32_t> pid;     ///< 0 = vacant
  std::atomic<std::uint32_t> index;   ///< engine number
  std::atomic<std::int64_t> started;  ///< Unix seconds, only for display
  /// The slot's counters when its process signed in: what earlier processes in the slot have
  /// counted.
  std::array<std::atomic<std::uint64_t>, kCounters.size()> at_sign_in;
  std::array<std::atomic<std::uint64_t>, kAllHistogramCells> cells_at_sign_in;
  SlotCounters counters;
  alignas(64) std::array<LaneCounters, kMostLanes> lanes;
};

/// The shared state of one lane of a tier.
struct alignas(64) LaneControl {
  std::atomic<std::uint64_t> head;  ///< hints of lower stamps are used up, for this lane's blocks
  /// Incremented when this lane's idle blocks may have hints before the head: every process then
  /// scans once.
  std::atomic<std::uint64_t> epoch;
  /// Added to the sums of the slots' LaneCounters; set by reaper and repair.
  std::atomic<std::uint32_t> cached_correction;
  std::atomic<std::uint32_t> idle_correction;
};

/// The shared state of one tier's release order (pool/eviction/idle_order.hpp) and of its counters.
struct TierControl {
  alignas(64) std::atomic<std::uint64_t> tail;  ///< next stamp to draw; starts at 1
  std::array<LaneControl, kMostLanes> lanes;    ///< the host tier has lane 0 only
  /// Like LaneControl::epoch, for all lanes.
  alignas(64) std::atomic<std::uint64_t> epoch;
  /// Added to the sum of the slots' `used`; set by reaper and repair.
  std::atomic<std::int64_t> used_correction;
  std::atomic<std::uint32_t> retired;  ///< number of retired blocks, without the null block
};

/// Words of claims (pool/processes/claims.hpp). A hundred prompts that are computed at once claim a
/// hundred, so two names rarely have the same place.
inline constexpr std::size_t kClaims = 1024;

/// The pool's header, written once, when the pool is formatted.
struct PoolHeader {
  std::uint64_t magic;
  std::uint32_t format_version;
  std::uint32_t layout_hash;
  /// Random; identifies this pool. A restarted keeper makes another pool.
  std::array<std::uint64_t, 2> epoch_uuid;
  PoolGeometry geometry;
  HashSecret secret;
  std::uint64_t checksum;  ///< over all fields before it
};

/// Calls visit(name, value) for each field of a header but the checksum. The value is a number; the
/// secret's value is a digest.
template <class Visit>
void for_each_field(const PoolHeader& header, Visit&& visit);
std::uint64_t checksum_of(const PoolHeader& header);

/// Stands at the end of the metadata object and of the tokens object; says to which pool they
/// belong.
struct ObjectHeader {
  std::uint64_t magic;
  std::uint32_t object;  ///< which of the pool's memory objects this is: a PoolObject
  std::uint32_t layout_hash;
  std::array<std::uint64_t, 2> epoch_uuid;
};

/// Start of the control object.
struct ControlBlock {
  PoolHeader header;
  PoolHeader copy;  ///< second copy of the header, by which corruption is found and repaired
  /// kFormatted, stored last, when everything else is written. 0 = not formatted yet. A single
  /// flipped bit does not turn one of the two into the other.
  std::atomic<std::uint64_t> formatted;
  alignas(64) std::atomic<std::uint64_t> next_serial;
  /// What the last reset of the prefix cache says (pool/care/cache_reset.hpp). Seldom written.
  alignas(64) std::atomic<std::uint32_t> resets;
  /// No content whose uid is lower is found any more.
  std::atomic<std::uint64_t> first_uid;
  /// Number of the next record in the journal of evictions; its index is this number modulo the
  /// journal's size.
  alignas(64) std::atomic<std::uint64_t> next_departure;
  std::array<TierControl, kTiers> tiers;
  std::array<ProcessEntry, kMaxProcesses> processes;
  alignas(64) std::array<std::atomic<std::uint64_t>, kClaims> claims;
};
static_assert(std::is_standard_layout_v<ControlBlock>);

/// A bucket of the index: eight hints in one cache line. A hint is tag << 32 | mark << 31 | block
/// id; block id 0 = no hint (pool/prefix_index.hpp).
struct alignas(64) IndexBucket {
  std::array<std::atomic<std::uint64_t>, 8> way;
};
static_assert(sizeof(IndexBucket) == 64);

/// A record about content that was evicted (pool/eviction/eviction_journal.hpp), only for
/// explanations.
struct JournalRecord {
  std::atomic<std::uint64_t> hash_low;
  std::atomic<std::uint64_t> what;  ///< time, slot, reason, and some bits of the name's other half
};
static_assert(sizeof(JournalRecord) == 16);
inline constexpr std::size_t kJournalRecordsPerBlock = 4;
inline constexpr std::size_t kMostJournalRecords = 1 << 20;

/// The life of a block that is measured (pool/block_lives.hpp). Times are in nanoseconds.
struct alignas(64) LifeRecord {
  std::atomic<std::uint64_t> began;  ///< 0 = nobody saw it
  std::atomic<std::uint64_t> uses;
  /// When it was used last. Use `i` is in place `i` modulo their number; 0 = there was none.
  std::array<std::atomic<std::uint64_t>, 4> used;
};
static_assert(sizeof(LifeRecord) == 64);

/// Sizes and offsets that follow from a geometry.
struct PoolLayout {
  explicit PoolLayout(const PoolGeometry& geometry);

  std::size_t control_bytes;
  /// Descriptors, then the index, then per tier: free bitmap, its summary, order ring; then the
  /// journal of evictions and the records of lives.
  std::size_t metadata_bytes;
  std::size_t metadata_header;  ///< offset of the ObjectHeader in the metadata object
  std::size_t tokens_bytes;     ///< token rows, then extra keys
  std::size_t tokens_header;    ///< offset of the ObjectHeader in the tokens object
  std::size_t device_bytes;
  std::size_t host_bytes;

  std::size_t index_offset;
  std::size_t index_buckets;  ///< a power of two; at most one block per bucket of 8 on average
  struct TierLayout {
    std::uint32_t first_block;
    std::uint32_t blocks;
    std::size_t bitmap_offset;  ///< one bit per block, 64 blocks per word
    std::size_t bitmap_words;
    std::size_t bitmap_groups;   ///< of kGroupWords words of the bitmap; the last may be smaller
    std::size_t summary_offset;  ///< one bit per group
    std::size_t summary_words;
    std::size_t ring_offset;  ///< u32 block ids
    std::size_t ring_slots;   ///< a power of two, at least 4 per block
    /// Words of the bitmap that have one bit in its summary: a cache line. A full pool's summary is
    /// read at each allocation, so it is short: 256 bytes for a million blocks.
    static constexpr std::size_t kGroupWords = 8;
  };
  std::array<TierLayout, kTiers> tiers;
  std::size_t journal_offset;
  std::size_t journal_slots;  ///< a power of two
  std::size_t lives_offset;   ///< a LifeRecord for each `life_stride` blocks of the device tier
  /// 64-bit words per token row: two tokens per word, the last word zero-padded.
  std::size_t row_words;
  std::size_t extras_offset;
};

template <class Visit>
void for_each_field(const PoolHeader& header, Visit&& visit) {
  const PoolGeometry& g = header.geometry;
  std::uint64_t secret = 0;
  for (const std::byte byte : header.secret.bytes)
    secret = (secret ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3ull;
  visit("magic", header.magic);
  visit("format version", std::uint64_t{header.format_version});
  visit("layout hash", std::uint64_t{header.layout_hash});
  visit("epoch (first half)", header.epoch_uuid[0]);
  visit("epoch (second half)", header.epoch_uuid[1]);
  visit("number of device blocks", std::uint64_t{g.device_blocks});
  visit("number of host blocks", std::uint64_t{g.host_blocks});
  visit("number of models", std::uint64_t{g.model_count});
  for (const ModelCache& model : g.models) {
    visit("tokens per block", std::uint64_t{model.tokens_per_block});
    visit("number of layers", std::uint64_t{model.kv.layers});
    visit("number of kv heads", std::uint64_t{model.kv.kv_heads});
    visit("head size", std::uint64_t{model.kv.head_size});
    visit("block size of the KV layout", std::uint64_t{model.kv.block_size});
    visit("dtype", static_cast<std::uint64_t>(model.kv.dtype));
    visit("page layout", static_cast<std::uint64_t>(model.kv.pages));
    visit("kind of KV", static_cast<std::uint64_t>(model.kv.kind));
    visit("padding of a block", std::uint64_t{model.kv.padding});
    visit("fingerprint", model.fingerprint);
    visit("number of cache groups", std::uint64_t{model.groups.count});
    visit("first cache group", std::uint64_t{model.groups.first});
    for (const CacheGroup& group : model.groups.group) {
      visit("kind of a cache group", static_cast<std::uint64_t>(group.kind));
      visit("span of a cache group", std::uint64_t{group.span});
    }
  }
  visit("kind of device", static_cast<std::uint64_t>(g.device));
  visit("kind of CPU kernels", static_cast<std::uint64_t>(g.cpu_kernels));
  for (const BlockLimits& limits : g.limits) {
    visit("minimum of a domain", std::uint64_t{limits.min});
    visit("maximum of a domain", std::uint64_t{limits.max});
  }
  for (const std::uint32_t blocks : g.model_minimums)
    visit("minimum of a model", std::uint64_t{blocks});
  visit("eviction policy", static_cast<std::uint64_t>(g.eviction_policy));
  visit("sampling of lives", std::uint64_t{g.life_stride});
  visit("hash algorithm", static_cast<std::uint64_t>(g.hash_algorithm));
  visit("hash secret's digest", secret);
}

/// A hash of the layout. It differs between builds whose layout or list of statistics differs, and
/// between geometries.
std::uint32_t layout_hash(const PoolGeometry& geometry);

}  // namespace kvhive
