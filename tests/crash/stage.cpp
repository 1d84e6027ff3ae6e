#include "tests/crash/stage.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

constexpr std::byte kSecret{0x5e};

template <class T>
T must(Expected<T> made) {
  KV_CHECK(made.has_value(), made.error().text);
  return *std::move(made);
}

PoolFds formatted(const PoolGeometry& geometry) {
  PoolFds fds = must(create_pool_objects(geometry));
  KV_CHECK(PoolMemory::format(fds, geometry).has_value());
  return fds;
}

/// Sets the same secret in every run, so that names fall into the same index buckets.
PoolMemory attached(const PoolFds& fds) {
  PoolMemory memory = must(PoolMemory::attach(fds, Access::read_write));
  std::mt19937 random(1);
  PoolHeader& header = memory.control().header;
  for (std::byte& byte : header.secret.bytes) byte = std::byte(random() & 0xff);
  header.checksum = checksum_of(header);
  memory.control().copy = header;
  return memory;
}

/// 64 bytes of payload per block, because the tests step through copies, too.
PoolGeometry geometry(Stage::With with) {
  PoolGeometry geometry = small_geometry(16, 8, 4, 2);
  if (with == Stage::With::groups) {
    geometry.models[0].groups.count = 2;
    geometry.models[0].groups.group[Stage::kWindow.value] = {CacheKind::sliding_window, 8};
  }
  if (with == Stage::With::models) {
    geometry.model_count = 2;
    geometry.models[1] = geometry.models[0];
    geometry.models[1].tokens_per_block = 3;
    geometry.models[1].groups.first = Stage::kOfSecond.value;
  }
  if (with == Stage::With::chances) geometry.eviction_policy = EvictionPolicy::second_chance;
  if (with == Stage::With::lives) geometry.life_stride = 1;
  if (with != Stage::With::lanes) return geometry;
  geometry.limits[Stage::kSure.value].min = 2;
  geometry.limits[Stage::kLimited.value].max = 4;
  return geometry;
}

}  // namespace

Stage::Stage(With with)
    : fds_(formatted(geometry(with))),
      memory_(attached(fds_)),
      victim_(memory_, kVictim),
      survivor_(memory_, kSurvivor),
      shared_(prompt({0, 1})),
      idle_(prompt({2, 0, 1})),
      owned_(prompt({1, 2})),
      unknown_(prompt({3, 0})),
      continued_(prompt({0, 1, 0, 2})) {
  sign_in(memory_, kVictim, 0);
  sign_in(memory_, kSurvivor, 1);
  (void)compute(survivor_, shared());
  survivor_.release(compute(survivor_, shared(), Tier::host));
  survivor_.release(compute(survivor_, idle()));
  hold(compute(victim_, owned()), owned().chain);
  hold(victim_.allocate(Tier::device, 2).value());
  claim = victim_.claims().claim(kVictims).claim.value();
  KV_CHECK(survivor_.claims().claim(kSurvivors).claim.has_value());
}

Prompt Stage::prompt(std::initializer_list<TokenId> tokens, DomainId domain) const {
  std::vector<TokenId> all;
  for (const TokenId token : tokens) all.insert(all.end(), victim_.tokens_per_block(), token);
  return Prompt(victim_, std::move(all), domain);
}

void Stage::hold(std::span<const BlockId> added) {
  for (const BlockId block : added) holdings.push_back({block, false, {}});
}

void Stage::hold(std::span<const BlockId> added, std::span<const Hash128> their_names) {
  for (std::size_t i = 0; i < added.size(); ++i)
    holdings.push_back({added[i], true, their_names[i]});
}

void Stage::let_go(std::span<const BlockId> given_back) {
  for (const BlockId block : given_back) {
    const auto found = std::find_if(holdings.begin(), holdings.end(),
                                    [&](const Holding& h) { return h.block == block; });
    KV_CHECK(found != holdings.end(), block.value);
    holdings.erase(found);
  }
}

std::vector<BlockId> Stage::held_blocks() const {
  std::vector<BlockId> held;
  for (const Holding& holding : holdings) held.push_back(holding.block);
  return held;
}

bool Stage::victim_concludes() {
  bool is_right = true;
  for (const auto& [block, is_published, name] : holdings) {
    const BlockWord word{memory_.descriptors()[block.value].word.load()};
    is_right &= word.state() == (is_published ? BlockState::ready : BlockState::filling);
    is_right &= (word.holders() & holder_bit(kVictim)) != 0;
    if (is_published) is_right &= is_payload_right(memory_, block, name);
  }
  victim_.release(held_blocks());
  holdings.clear();
  return is_right;
}

std::vector<BlockId> compute(BlockPool& pool, const Prompt& prompt, Tier tier) {
  const PrefixHit hit = match_all(pool, prompt, tier);
  const std::size_t found = hit.blocks.size(), missing = prompt.full_blocks() - found;
  const auto fresh = pool.allocate(tier, missing, prompt.domain).value();
  fill_blocks(pool, fresh, prompt.names(found, missing));
  pool.publish(hit.end, fresh, prompt.names(found, missing), prompt.of_blocks(found, missing));
  return joined_ids(hit.blocks, fresh);
}

void fill_blocks(const BlockPool& pool, std::span<const BlockId> blocks,
                 std::span<const Hash128> names) {
  for (std::size_t i = 0; i < blocks.size(); ++i) fill_payload(pool.memory(), blocks[i], names[i]);
}

void fill_with_secret(const PoolMemory& memory, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks)
    std::fill_n(payload_of(memory, block), payload_words(memory) * 8, kSecret);
}

bool has_secret(const PoolMemory& memory, BlockId block) {
  const std::byte* payload = payload_of(memory, block);
  std::size_t in_a_row = 0;  // other content may have single bytes of this value
  for (std::size_t i = 0; i < payload_words(memory) * 8 && in_a_row < 8; ++i)
    in_a_row = payload[i] == kSecret ? in_a_row + 1 : 0;
  return in_a_row == 8;
}

}  // namespace kvhive::testing
