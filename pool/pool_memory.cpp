#include "pool/pool_memory.hpp"

#include <sys/random.h>

#include <cstring>
#include <string>

#include "config/byte_size.hpp"
#include "pool/kill_point.hpp"

namespace kvhive {
namespace {

constexpr std::array<const char*, kPoolObjects> kNames = {
    "kvhive-control", "kvhive-metadata", "kvhive-tokens", "kvhive-device", "kvhive-host"};

std::array<std::size_t, kPoolObjects> sizes_of(const PoolLayout& layout) {
  return {layout.control_bytes, layout.metadata_bytes, layout.tokens_bytes, layout.device_bytes,
          layout.host_bytes};
}

Expected<void> check_geometry(const PoolGeometry& geometry) {
  if (geometry.device_blocks < 2)
    return failure(Errc::bad_argument,
                   "a pool needs at least 2 device blocks (one is the null block), got " +
                       std::to_string(geometry.device_blocks));
  if (geometry.tokens_per_block < 1 || geometry.tokens_per_block > 1024)
    return failure(Errc::bad_argument, "block_size must be 1..1024 tokens, got " +
                                           std::to_string(geometry.tokens_per_block));
  return {};
}

Expected<void> check_header(const ControlBlock& control) {
  const auto differs = [](const char* field, auto theirs, auto ours) {
    return failure(Errc::layout_mismatch, std::string("the pool's ") + field + " is " +
                                              std::to_string(theirs) + ", this program's is " +
                                              std::to_string(ours) +
                                              "; use programs of the same build");
  };
  if (control.magic != kPoolMagic) return differs("magic", control.magic, kPoolMagic);
  if (control.format_version != kFormatVersion)
    return differs("format version", control.format_version, kFormatVersion);
  if (control.layout_hash != layout_hash(control.geometry))
    return differs("layout hash", control.layout_hash, layout_hash(control.geometry));
  return {};
}

void set_all_bits(std::atomic<std::uint64_t>* words, std::size_t bits) {
  for (std::size_t i = 0; i * 64 < bits; ++i) {
    const std::size_t left = bits - i * 64;
    words[i].store(left >= 64 ? ~0ull : (1ull << left) - 1, std::memory_order_relaxed);
  }
}

}  // namespace

Expected<PoolFds> create_pool_objects(const PoolGeometry& geometry) {
  if (auto valid = check_geometry(geometry); !valid) return forward_error(valid);
  const auto sizes = sizes_of(PoolLayout(geometry));
  PoolFds fds;
  for (std::size_t i = 0; i < kPoolObjects; ++i) {
    if (sizes[i] == 0) continue;
    auto fd = create_memory(kNames[i], sizes[i]);
    if (!fd) return forward_error(fd);
    fds[i] = std::move(*fd);
  }
  return fds;
}

Expected<void> PoolMemory::format(const PoolFds& fds, const PoolGeometry& geometry) {
  if (auto valid = check_geometry(geometry); !valid) return valid;
  PoolMemory pool(geometry);
  const auto sizes = sizes_of(pool.layout_);
  for (const auto object : {PoolObject::control, PoolObject::metadata}) {
    const auto i = std::size_t(object);
    auto map = MappedMemory::map(fds[i].get(), sizes[i], Access::read_write, kNames[i]);
    if (!map) return forward_error(map);
    KV_KILL_POINT("format.before_clear");
    std::memset(map->data(), 0, map->size());
    KV_KILL_POINT("format.cleared");
    pool.maps_[i] = std::move(*map);
  }

  // All descriptors are zero: free, generation 0. Every block can be had but the null block.
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto& t = pool.tier_layout(tier);
    set_all_bits(pool.bitmap(tier), t.blocks);
    KV_KILL_POINT("format.half_announced");
    set_all_bits(pool.summary(tier), t.bitmap_words);
    TierControl& control = pool.control().tiers[std::size_t(tier)];
    control.tail.store(1, std::memory_order_relaxed);
    control.head.store(1, std::memory_order_relaxed);
    KV_KILL_POINT("format.after_a_tier");
  }
  pool.bitmap(Tier::device)[0].fetch_and(~1ull, std::memory_order_relaxed);
  pool.descriptors()[kNullBlock.value].word.store(BlockWord::make(BlockState::retired, 0, 0).bits,
                                                  std::memory_order_relaxed);

  KV_KILL_POINT("format.null_block_set_aside");
  ControlBlock& control = pool.control();
  control.magic = kPoolMagic;
  control.format_version = kFormatVersion;
  control.layout_hash = layout_hash(geometry);
  control.geometry = geometry;
  KV_KILL_POINT("format.before_secret");
  control.secret = random_hash_secret();
  if (getrandom(control.epoch_uuid.data(), control.epoch_uuid.size(), 0) < 0)
    return os_failure("getrandom");
  control.next_serial.store(1, std::memory_order_relaxed);
  KV_KILL_POINT("format.before_done");
  control.is_formatted.store(1, std::memory_order_release);
  KV_KILL_POINT("format.done");
  return {};
}

Expected<PoolMemory> PoolMemory::attach(const PoolFds& fds, Access access) {
  const UniqueFd& control_fd = fds[std::size_t(PoolObject::control)];
  const std::size_t control_bytes = PoolLayout(PoolGeometry{}).control_bytes;
  auto control = MappedMemory::map(control_fd.get(), control_bytes, access, "kvhive-control");
  if (!control) return forward_error(control);
  const auto& header = *reinterpret_cast<const ControlBlock*>(control->data());
  if (header.is_formatted.load(std::memory_order_acquire) == 0)
    return failure(Errc::not_running, "the pool is not formatted yet; try again in a moment");
  if (auto valid = check_header(header); !valid) return forward_error(valid);
  const PoolGeometry geometry = header.geometry;
  if (auto valid = check_geometry(geometry); !valid) return forward_error(valid);

  PoolMemory pool(geometry);
  pool.maps_[std::size_t(PoolObject::control)] = std::move(*control);
  const auto sizes = sizes_of(pool.layout_);
  for (std::size_t i = 1; i < kPoolObjects; ++i) {
    const bool may_be_missing =
        access == Access::read_only && PoolObject(i) != PoolObject::metadata;
    if (!fds[i] && (sizes[i] == 0 || may_be_missing)) continue;
    auto map = MappedMemory::map(fds[i].get(), sizes[i], access, kNames[i]);
    if (!map) return forward_error(map);
    map->prefer_huge_pages();
    const bool is_payload =
        PoolObject(i) == PoolObject::device || PoolObject(i) == PoolObject::host;
    if (!is_payload) map->populate();
    pool.maps_[i] = std::move(*map);
  }
  return pool;
}

Expected<PoolMemory> PoolMemory::create_private(const PoolGeometry& geometry) {
  auto fds = create_pool_objects(geometry);
  if (!fds) return forward_error(fds);
  if (auto formatted = format(*fds, geometry); !formatted) return forward_error(formatted);
  return attach(*fds, Access::read_write);
}

}  // namespace kvhive
