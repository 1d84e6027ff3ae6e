#include "pool/pool_layout.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "base/round_up.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

PoolLayout::PoolLayout(const PoolGeometry& geometry) {
  const std::size_t blocks = geometry.total_blocks();
  control_bytes = round_up(sizeof(ControlBlock), kPage);

  std::size_t end = blocks * sizeof(BlockDescriptor);
  const auto place = [&end](std::size_t bytes) {
    const std::size_t offset = round_up(end, 64);
    end = offset + bytes;
    return offset;
  };
  index_buckets = std::bit_ceil(blocks + 1);
  index_offset = place(index_buckets * sizeof(IndexBucket));
  for (std::size_t t = 0; t < kTiers; ++t) {
    TierLayout& tier = tiers[t];
    tier.first_block = t == 0 ? 0 : geometry.device_blocks;
    tier.blocks = t == 0 ? geometry.device_blocks : geometry.host_blocks;
    tier.bitmap_words = (tier.blocks + 63) / 64;
    tier.bitmap_offset = place(tier.bitmap_words * 8);
    tier.bitmap_groups =
        (tier.bitmap_words + TierLayout::kGroupWords - 1) / TierLayout::kGroupWords;
    tier.summary_words = (tier.bitmap_groups + 63) / 64;
    tier.summary_offset = place(tier.summary_words * 8);
    tier.ring_slots = std::bit_ceil(std::size_t{tier.blocks} * 4 + 64);
    tier.ring_offset = place(tier.ring_slots * 4);
  }
  journal_slots = std::min(std::bit_ceil(blocks * kJournalRecordsPerBlock), kMostJournalRecords);
  journal_offset = place(journal_slots * sizeof(JournalRecord));
  const std::uint32_t stride = geometry.life_stride;
  const std::size_t lives = stride == 0 ? 0 : (geometry.device_blocks - 1) / stride + 1;
  lives_offset = place(lives * sizeof(LifeRecord));
  metadata_header = place(sizeof(ObjectHeader));
  metadata_bytes = round_up(end, kPage);

  row_words = (geometry.most_tokens_per_block() + 1) / 2;
  extras_offset = round_up(blocks * row_words * 8, 64);
  tokens_header = round_up(extras_offset + blocks * sizeof(ExtraKey), 64);
  tokens_bytes = round_up(tokens_header + sizeof(ObjectHeader), kPage);
  device_bytes = round_up(geometry.device_blocks * geometry.block_bytes(),
                          geometry.device == DeviceKind::cpu ? kPage : kDeviceGranularity);
  host_bytes = round_up(geometry.host_blocks * geometry.block_bytes(), kPage);
}

std::uint64_t checksum_of(const PoolHeader& header) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  for_each_field(header, [&sum](const char*, std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      sum = (sum ^ (value >> shift & 0xff)) * 0x100000001b3ull;
  });
  return sum;
}

std::uint32_t layout_hash(const PoolGeometry& geometry) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::uint64_t number) {
    for (const int shift : {0, 32})
      hash = (hash ^ static_cast<std::uint32_t>(number >> shift)) * 16777619u;
  };
  for (const CounterInfo& counter : kCounters)
    for (const char letter : counter.name)
      hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  for (const HistogramInfo& histogram : kHistograms) {
    for (const char letter : histogram.name)
      hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
    for (const std::uint64_t edge : histogram.edges) add(edge);
  }
  for (const std::uint64_t number : {std::size_t{kFormatVersion},
                                     sizeof(ControlBlock),
                                     sizeof(PoolHeader),
                                     offsetof(PoolHeader, geometry),
                                     offsetof(PoolHeader, secret),
                                     sizeof(ObjectHeader),
                                     offsetof(ControlBlock, next_serial),
                                     offsetof(ControlBlock, resets),
                                     offsetof(ControlBlock, next_departure),
                                     offsetof(ControlBlock, tiers),
                                     offsetof(ControlBlock, processes),
                                     offsetof(ControlBlock, claims),
                                     kClaims,
                                     sizeof(PoolGeometry),
                                     sizeof(TierControl),
                                     sizeof(LaneControl),
                                     sizeof(LaneCounters),
                                     kMostLanes,
                                     offsetof(TierControl, epoch),
                                     sizeof(ProcessEntry),
                                     sizeof(SlotCounters),
                                     sizeof(BlockDescriptor),
                                     offsetof(BlockDescriptor, uid),
                                     offsetof(BlockDescriptor, depth),
                                     sizeof(IndexBucket),
                                     sizeof(JournalRecord),
                                     kJournalRecordsPerBlock,
                                     kMostJournalRecords,
                                     sizeof(LifeRecord),
                                     std::size_t{geometry.life_stride},
                                     std::size_t{geometry.device_blocks},
                                     std::size_t{geometry.host_blocks},
                                     std::size_t(geometry.device),
                                     std::size_t(geometry.cpu_kernels),
                                     std::size_t{geometry.model_count}})
    add(number);
  for (const ModelCache& model : geometry.all_models()) {
    const KvLayout& kv = model.kv;
    for (const std::uint64_t number :
         {std::size_t{model.tokens_per_block}, std::size_t{kv.layers}, std::size_t{kv.kv_heads},
          std::size_t{kv.head_size}, std::size_t{kv.block_size}, std::size_t(kv.dtype),
          std::size_t(kv.pages), std::size_t(kv.kind), std::size_t{kv.padding},
          std::size_t{model.groups.first}, std::size_t{model.groups.count},
          std::size_t{model.fingerprint}})
      add(number);
  }
  return hash;
}

}  // namespace kvhive
