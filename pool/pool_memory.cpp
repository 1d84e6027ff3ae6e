#include "pool/pool_memory.hpp"

#include <sys/random.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_size.hpp"
#include "base/kill_point.hpp"
#include "base/prefetch.hpp"

namespace kvhive {
namespace {

constexpr std::array<const char*, kPoolObjects> kNames = {
    "kvhive-control", "kvhive-metadata", "kvhive-tokens", "kvhive-device", "kvhive-host"};

std::array<std::size_t, kPoolObjects> sizes_of(const PoolLayout& layout) {
  return {layout.control_bytes, layout.metadata_bytes, layout.tokens_bytes, layout.device_bytes,
          layout.host_bytes};
}

Expected<void> check_limits(const PoolGeometry& geometry) {
  std::uint64_t sum = 0;
  for (const BlockLimits& limits : geometry.limits) {
    sum += limits.min;
    if (limits.max != 0 && limits.max < limits.min)
      return failure(Errc::bad_argument, "a domain's most blocks, " + std::to_string(limits.max) +
                                             ", are fewer than those it is sure of, " +
                                             std::to_string(limits.min));
  }
  if (geometry.has_model_minimums() && geometry.limited_domains() != 0)
    return failure(
        Errc::bad_argument,
        "domains have limits of blocks, and models have minimums; a pool counts by one of "
        "them");
  for (std::size_t m = geometry.model_count; m < kMostModels; ++m)
    if (geometry.model_minimums[m] != 0)
      return failure(Errc::bad_argument, "a model that does not exist has a minimum of blocks");
  for (const std::uint32_t blocks : geometry.model_minimums) sum += blocks;
  if (sum >= geometry.device_blocks)
    return failure(Errc::bad_argument, "domains or models are sure of " + std::to_string(sum) +
                                           " blocks, the device tier has " +
                                           std::to_string(geometry.device_blocks - 1));
  return {};
}

Expected<void> check_groups(const CacheGroups& groups) {
  if (groups.count < 1 || groups.count > kMostGroups)
    return failure(Errc::bad_argument, "a pool has 1 to " + std::to_string(kMostGroups) +
                                           " cache groups, got " + std::to_string(groups.count));
  for (const CacheGroup& group : groups.all()) {
    if (group.kind > CacheKind::chunked_local)
      return failure(Errc::bad_argument, "a cache group's kind is " +
                                             std::to_string(std::uint32_t(group.kind)) +
                                             ", known are 0 (full) to 2 (chunked_local)");
    if ((group.kind == CacheKind::full) != (group.span == 0))
      return failure(Errc::bad_argument, "a cache group of kind " +
                                             std::string(to_string(group.kind)) + " has span " +
                                             std::to_string(group.span) +
                                             "; it is 0 for full attention, and for no other");
  }
  return {};
}

Expected<void> check_models(const PoolGeometry& geometry) {
  if (geometry.model_count < 1 || geometry.model_count > kMostModels)
    return failure(Errc::bad_argument, "a pool has 1 to " + std::to_string(kMostModels) +
                                           " models, got " + std::to_string(geometry.model_count));
  std::uint32_t groups = 0;
  for (const ModelCache& model : geometry.all_models()) {
    if (auto valid = check_groups(model.groups); !valid) return valid;
    if (model.groups.first != std::exchange(groups, groups + model.groups.count))
      return failure(Errc::bad_argument, "a model's first cache group is " +
                                             std::to_string(model.groups.first) +
                                             "; those of the models before it come first");
    if (model.tokens_per_block < 1 || model.tokens_per_block > 1024)
      return failure(Errc::bad_argument, "block_size must be 1..1024 tokens, got " +
                                             std::to_string(model.tokens_per_block));
    if (model.kv.block_bytes() != geometry.block_bytes())
      return failure(Errc::bad_argument,
                     "a model's block has " + std::to_string(model.kv.block_bytes()) +
                         " bytes, another's " + std::to_string(geometry.block_bytes()) +
                         "; all blocks of a pool are equal");
  }
  return {};
}

Expected<void> check_geometry(const PoolGeometry& geometry) {
  if (geometry.device_blocks < 2)
    return failure(Errc::bad_argument,
                   "a pool needs at least 2 device blocks (one is the null block), got " +
                       std::to_string(geometry.device_blocks));
  if (std::uint64_t{geometry.device_blocks} + geometry.host_blocks > kMostBlocks)
    return failure(Errc::bad_argument,
                   "a pool has at most " + std::to_string(kMostBlocks) + " blocks, got " +
                       std::to_string(geometry.device_blocks) + " in the device tier and " +
                       std::to_string(geometry.host_blocks) +
                       " in the host tier; use larger blocks (--block-size)");
  if (geometry.device > DeviceKind::cuda)
    return failure(Errc::bad_argument, "the pool's kind of device is " +
                                           std::to_string(std::uint32_t(geometry.device)) +
                                           ", known are 0 (cpu) and 1 (cuda)");
  if (geometry.eviction_policy > EvictionPolicy::second_chance)
    return failure(Errc::bad_argument, "the pool's eviction policy is " +
                                           std::to_string(std::uint32_t(geometry.eviction_policy)) +
                                           ", known are 0 (lru) and 1 (second-chance)");
  if (geometry.hash_algorithm > HashAlgorithm::sha256)
    return failure(Errc::bad_argument, "the pool's hash algorithm is " +
                                           std::to_string(std::uint32_t(geometry.hash_algorithm)) +
                                           ", known are 0 (xxhash) and 1 (sha256)");
  if (geometry.cpu_kernels > CpuKernels::amx)
    return failure(Errc::bad_argument, "the pool's CPU kernels are " +
                                           std::to_string(std::uint32_t(geometry.cpu_kernels)) +
                                           ", known are 0 (sse4) to 4 (amx)");
  if (auto valid = check_models(geometry); !valid) return valid;
  return check_limits(geometry);
}

/// Prefetches one cache line of each page, so that the page tables are in the caches. The data
/// itself is kept out of the larger caches.
void warm_page_walks(const void* from, std::size_t bytes) {
  constexpr std::size_t kSmallPage = 4096;
  for (std::size_t at = 0; at < bytes; at += kSmallPage)
    prefetch_once(static_cast<const std::byte*>(from) + at);
}

/// Checks each field of the header, before any of them is used as a size or an index.
Expected<void> check_header(const ControlBlock& control) {
  const PoolHeader& header = control.header;
  const auto differs = [](const char* field, std::uint64_t theirs, std::uint64_t ours) {
    return failure(Errc::layout_mismatch, std::string("the pool's ") + field + " is " +
                                              std::to_string(theirs) + ", this program's is " +
                                              std::to_string(ours) +
                                              "; use programs of the same build");
  };
  if (header.magic != kPoolMagic) return differs("magic", header.magic, kPoolMagic);
  if (header.format_version != kFormatVersion)
    return differs("format version", header.format_version, kFormatVersion);

  struct Field {
    std::string name;
    std::uint64_t value;
  };
  std::vector<Field> copies;
  for_each_field(control.copy, [&](const char* name, std::uint64_t value) {
    copies.push_back({name, value});
  });
  copies.push_back({"checksum", control.copy.checksum});
  std::optional<Error> damage;
  auto copy = copies.begin();
  const auto compare = [&](const char* name, std::uint64_t value) {
    if (value != copy->value && !damage)
      damage = Error{Errc::bad_format, std::string("the pool's ") + name + " is " +
                                           std::to_string(value) + ", its copy says " +
                                           std::to_string(copy->value) +
                                           ": the header is damaged; restart the daemon"};
    ++copy;
  };
  for_each_field(header, compare);
  compare("checksum", header.checksum);
  if (damage) return failure(damage->code, damage->text);

  if (header.layout_hash != layout_hash(header.geometry))
    return differs("layout hash", header.layout_hash, layout_hash(header.geometry));
  if (header.checksum != checksum_of(header))
    return differs("checksum", header.checksum, checksum_of(header));
  if (const auto mark = control.formatted.load(std::memory_order_acquire); mark != kFormatted)
    return failure(Errc::bad_format, "the pool's mark of being formatted is " +
                                         std::to_string(mark) + " instead of " +
                                         std::to_string(kFormatted) +
                                         ": the header is damaged; restart the daemon");
  return {};
}

void set_all_bits(std::atomic<std::uint64_t>* words, std::size_t bits) {
  for (std::size_t i = 0; i * 64 < bits; ++i) {
    const std::size_t left = bits - i * 64;
    words[i].store(left >= 64 ? ~0ull : (1ull << left) - 1, std::memory_order_relaxed);
  }
}

}  // namespace

const char* name_of(PoolObject object) { return kNames[std::size_t(object)]; }

Expected<PoolFds> create_pool_objects(const PoolGeometry& geometry) {
  return create_pool_objects(geometry, {}).map([](auto&& fds) { return std::move(*fds); });
}

Expected<std::optional<PoolFds>> create_pool_objects(const PoolGeometry& geometry,
                                                     const GoesOn& goes_on) {
  if (auto valid = check_geometry(geometry); !valid) return forward_error(valid);
  const auto sizes = sizes_of(PoolLayout(geometry));
  PoolFds fds;
  for (std::size_t i = 0; i < kPoolObjects; ++i) {
    if (sizes[i] == 0) continue;
    if (PoolObject(i) == PoolObject::device && geometry.device != DeviceKind::cpu) continue;
    auto fd = create_memory(kNames[i], sizes[i], Pages::huge, goes_on);
    if (!fd) return forward_error(fd);
    if (!*fd) return std::optional<PoolFds>();
    fds[i] = std::move(*fd);
  }
  return std::optional<PoolFds>(std::move(fds));
}

Expected<void> PoolMemory::format(const PoolFds& fds, const PoolGeometry& geometry) {
  if (auto valid = check_geometry(geometry); !valid) return valid;
  PoolMemory pool(geometry);
  const auto sizes = sizes_of(pool.layout_);
  for (const auto object : {PoolObject::control, PoolObject::metadata, PoolObject::tokens}) {
    const auto i = std::size_t(object);
    auto map = MappedMemory::map(fds[i].get(), sizes[i], Access::read_write, kNames[i]);
    if (!map) return forward_error(map);
    KV_KILL_POINT("format.before_clear");
    if (object != PoolObject::tokens) std::memset(map->data(), 0, map->size());
    KV_KILL_POINT("format.cleared");
    pool.maps_[i] = std::move(*map);
  }

  // All descriptors are zero, which means free with generation 0. All blocks but the null block can
  // be allocated.
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto& t = pool.tier_layout(tier);
    set_all_bits(pool.bitmap(tier), t.blocks);
    KV_KILL_POINT("format.half_announced");
    set_all_bits(pool.summary(tier), t.bitmap_groups);
    TierControl& control = pool.control().tiers[std::size_t(tier)];
    control.tail.store(1, std::memory_order_relaxed);
    for (LaneControl& lane : control.lanes) lane.head.store(1, std::memory_order_relaxed);
    KV_KILL_POINT("format.after_a_tier");
  }
  pool.bitmap(Tier::device)[0].fetch_and(~1ull, std::memory_order_relaxed);
  pool.block(kNullBlock).set_word(kNullBlockWord);

  KV_KILL_POINT("format.null_block_set_aside");
  ControlBlock& control = pool.control();
  PoolHeader& header = control.header;
  header.magic = kPoolMagic;
  header.format_version = kFormatVersion;
  header.layout_hash = layout_hash(geometry);
  header.geometry = geometry;
  header.secret = random_hash_secret();
  if (getrandom(header.epoch_uuid.data(), sizeof header.epoch_uuid, 0) < 0)
    return os_failure("getrandom");
  header.checksum = checksum_of(header);
  KV_KILL_POINT("format.before_copy");
  control.copy = header;
  for (const auto object : {PoolObject::metadata, PoolObject::tokens})
    *pool.object_header(object) = {kPoolMagic, std::uint32_t(object), header.layout_hash,
                                   header.epoch_uuid};
  control.next_serial.store(1, std::memory_order_relaxed);
  KV_KILL_POINT("format.before_done");
  control.formatted.store(kFormatted, std::memory_order_release);
  KV_KILL_POINT("format.done");
  return {};
}

Expected<PoolMemory> PoolMemory::attach(const PoolFds& fds, Access access) {
  const UniqueFd& control_fd = fds[std::size_t(PoolObject::control)];
  const std::size_t control_bytes = PoolLayout(PoolGeometry{}).control_bytes;
  auto control = MappedMemory::map(control_fd.get(), control_bytes, access, "kvhive-control");
  if (!control) return forward_error(control);
  control->populate();
  const auto& block = *reinterpret_cast<const ControlBlock*>(control->data());
  if (block.formatted.load(std::memory_order_acquire) == 0)
    return failure(Errc::not_running, "the pool is not formatted yet; try again in a moment");
  if (auto valid = kvhive::check_header(block); !valid) return forward_error(valid);
  const PoolGeometry geometry = block.header.geometry;
  if (auto valid = check_geometry(geometry); !valid) return forward_error(valid);

  PoolMemory pool(geometry);
  pool.maps_[std::size_t(PoolObject::control)] = std::move(*control);
  const auto sizes = sizes_of(pool.layout_);
  for (std::size_t i = 1; i < kPoolObjects; ++i) {
    const bool may_be_missing =
        access == Access::read_only && PoolObject(i) != PoolObject::metadata;
    if (!fds[i] && (sizes[i] == 0 || may_be_missing)) continue;
    if (PoolObject(i) == PoolObject::device && geometry.device != DeviceKind::cpu) continue;
    auto map = MappedMemory::map(fds[i].get(), sizes[i], access, kNames[i]);
    if (!map) return forward_error(map);
    map->prefer_huge_pages();
    const bool is_payload =
        PoolObject(i) == PoolObject::device || PoolObject(i) == PoolObject::host;
    if (!is_payload) map->populate();
    pool.maps_[i] = std::move(*map);
    if (is_payload) continue;
    if (auto valid = pool.check_object(PoolObject(i)); !valid) return forward_error(valid);
  }
  if (access == Access::read_write) pool.warm_up();
  return pool;
}

/// Brings the page tables into the CPU's caches, for the first matches. Does so twice, since the
/// first round evicts some of its own page tables again. The index comes last, because it is read
/// at random addresses and so needs them most.
void PoolMemory::warm_up() const {
  const std::size_t blocks = geometry_.total_blocks();
  for (int round = 0; round < 2; ++round) {
    warm_page_walks(token_row(BlockId{0}), blocks * layout_.row_words * sizeof(std::uint64_t));
    warm_page_walks(descriptors(), blocks * sizeof(BlockDescriptor));
    warm_page_walks(index(), layout_.index_buckets * sizeof(IndexBucket));
  }
}

Expected<void> PoolMemory::check_header() const { return kvhive::check_header(control()); }

/// Checks that an object belongs to this pool. An object of another pool, or of an earlier run of
/// the daemon, may have the right size, but its epoch differs.
Expected<void> PoolMemory::check_object(PoolObject object) const {
  const ObjectHeader& theirs = *object_header(object);
  const PoolHeader& ours = control().header;
  const auto compare = [&](const char* field, std::uint64_t value,
                           std::uint64_t wanted) -> Expected<void> {
    if (value == wanted) return {};
    return failure(Errc::bad_format, std::string(kNames[std::size_t(object)]) + "'s " + field +
                                         " is " + std::to_string(value) + ", the pool's is " +
                                         std::to_string(wanted) +
                                         ": it is damaged, or belongs to another pool");
  };
  if (auto same = compare("magic", theirs.magic, kPoolMagic); !same) return same;
  if (auto same = compare("number", theirs.object, std::uint64_t(object)); !same) return same;
  if (auto same = compare("layout hash", theirs.layout_hash, ours.layout_hash); !same) return same;
  if (auto same = compare("epoch (first half)", theirs.epoch_uuid[0], ours.epoch_uuid[0]); !same)
    return same;
  return compare("epoch (second half)", theirs.epoch_uuid[1], ours.epoch_uuid[1]);
}

Expected<PoolMemory> PoolMemory::create_private(const PoolGeometry& geometry) {
  auto fds = create_pool_objects(geometry);
  if (!fds) return forward_error(fds);
  if (auto formatted = format(*fds, geometry); !formatted) return forward_error(formatted);
  return attach(*fds, Access::read_write);
}

Expected<void> PoolMemory::lock_metadata() const {
  for (const auto object : {PoolObject::control, PoolObject::metadata, PoolObject::tokens})
    if (auto locked = maps_[std::size_t(object)].lock(); !locked) return locked;
  return {};
}

}  // namespace kvhive
