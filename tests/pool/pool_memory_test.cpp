#include "pool/pool_memory.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

PoolFds formatted(const PoolGeometry& geometry) {
  PoolFds fds = create_pool_objects(geometry).value();
  EXPECT_TRUE(PoolMemory::format(fds, geometry).has_value());
  return fds;
}

PoolFds reopened(const PoolFds& fds) {
  PoolFds readers;
  for (std::size_t i = 0; i < kPoolObjects; ++i)
    if (fds[i]) readers[i] = reopen_read_only(fds[i].get()).value();
  return readers;
}

UniqueFd& at(PoolFds& fds, PoolObject object) { return fds[std::size_t(object)]; }
const UniqueFd& at(const PoolFds& fds, PoolObject object) { return fds[std::size_t(object)]; }

TEST(CreatePoolObjects, MakesOnlyWhatTheGeometryNeeds) {
  auto fds = create_pool_objects(small_geometry(4)).value();
  EXPECT_TRUE(at(fds, PoolObject::device));
  EXPECT_FALSE(at(fds, PoolObject::host));
  PoolGeometry bare = small_geometry(4, 4);
  bare.models[0].kv = {};
  fds = create_pool_objects(bare).value();
  EXPECT_FALSE(at(fds, PoolObject::device));
  EXPECT_FALSE(at(fds, PoolObject::host));
}

TEST(CreatePoolObjects, GivesUpWhenTheyAreNotWantedAnyMore) {
  int asked = 0;
  const auto all = create_pool_objects(small_geometry(4, 4), [&asked] { return ++asked > 0; });
  EXPECT_TRUE(all.value().has_value());
  const int before = std::exchange(asked, 0);
  EXPECT_GE(before, 5) << "once for each object";
  const auto some = create_pool_objects(small_geometry(4, 4), [&] { return ++asked < before; });
  EXPECT_FALSE(some.value().has_value());
}

TEST(CreatePoolObjects, RefusesImpossibleGeometries) {
  for (const auto& geometry : {small_geometry(0), small_geometry(1), small_geometry(4, 0, 0),
                               small_geometry(4, 0, 1025)}) {
    const auto fds = create_pool_objects(geometry);
    ASSERT_FALSE(fds.has_value());
    EXPECT_EQ(fds.error().code, Errc::bad_argument);
    EXPECT_EQ(PoolMemory::format(PoolFds{}, geometry).error().code, Errc::bad_argument);
  }
}

TEST(PoolMemory, AFormattedPoolIsCleanAndAllBlocksAreFree) {
  const PoolMemory memory = private_pool(small_geometry(70, 5));
  EXPECT_EQ(memory.geometry(), small_geometry(70, 5));
  EXPECT_THAT(fsck(memory).violations, IsEmpty());
  BlockPool pool(memory, ProcessSlot{0});
  occupy(memory, ProcessSlot{0});
  EXPECT_TRUE(pool.allocate(Tier::device, 69).has_value());
  EXPECT_TRUE(pool.allocate(Tier::host, 5).has_value());
}

TEST(PoolMemory, InterruptedFormatCanBeRunAgain) {
  PoolFds fds = create_pool_objects(small_geometry(8)).value();
  const PoolLayout layout(small_geometry(8));
  auto metadata = MappedMemory::map(at(fds, PoolObject::metadata).get(), layout.metadata_bytes,
                                    Access::read_write, "metadata");
  std::memset(metadata->data(), 0xa5, metadata->size());
  ASSERT_TRUE(PoolMemory::format(fds, small_geometry(8)).has_value());
  EXPECT_THAT(fsck(PoolMemory::attach(fds, Access::read_write).value()).violations, IsEmpty());
}

TEST(PoolMemory, TwoAttachmentsSeeOnePool) {
  const PoolFds fds = formatted(small_geometry(8));
  const PoolMemory first = PoolMemory::attach(fds, Access::read_write).value();
  const PoolMemory second = PoolMemory::attach(fds, Access::read_write).value();
  BlockPool writer(first, ProcessSlot{0}), reader(second, ProcessSlot{1});
  const Prompt prompt(writer, counting(0, 12));
  const Request request = admit(writer, prompt).value();
  EXPECT_EQ(match_all(reader, prompt).blocks, request.blocks);
}

TEST(PoolMemory, EveryPoolHasItsOwnSecretAndEpoch) {
  const PoolMemory first = private_pool(small_geometry(4));
  const PoolMemory second = private_pool(small_geometry(4));
  EXPECT_NE(first.control().header.epoch_uuid, second.control().header.epoch_uuid);
  EXPECT_NE(first.control().header.secret.bytes, second.control().header.secret.bytes);
}

TEST(PoolMemory, KnowsWhereEachBlockLies) {
  const PoolMemory memory = private_pool(small_geometry(8, 4));
  EXPECT_EQ(memory.tier_of(BlockId{7}), Tier::device);
  EXPECT_EQ(memory.tier_of(BlockId{8}), Tier::host);
  EXPECT_TRUE(memory.has_block(BlockId{11}));
  EXPECT_FALSE(memory.has_block(BlockId{12}));
  // The last byte of each arena is mapped.
  const std::size_t bytes = memory.geometry().models[0].kv.block_bytes();
  memory.arena(Tier::device)[8 * bytes - 1] = std::byte{1};
  memory.arena(Tier::host)[4 * bytes - 1] = std::byte{1};
}

// -- refusals

TEST(PoolMemory, RefusesAPoolNotYetFormatted) {
  const PoolFds fds = create_pool_objects(small_geometry(8)).value();
  const auto attached = PoolMemory::attach(fds, Access::read_write);
  ASSERT_FALSE(attached.has_value());
  EXPECT_EQ(attached.error().code, Errc::not_running);
}

struct Corruption {
  const char* test;
  const char* field;  ///< the field's name in the error text
  std::function<void(PoolHeader&)> apply;
};

class PoolMemoryHeader : public ::testing::TestWithParam<Corruption> {
 protected:
  void expect_refusal(const std::string& field) const {
    for (const Access access : {Access::read_write, Access::read_only}) {
      const auto attached = PoolMemory::attach(fds, access);
      ASSERT_FALSE(attached.has_value());
      EXPECT_THAT(attached.error().code, ::testing::AnyOf(Errc::layout_mismatch, Errc::bad_format));
      EXPECT_THAT(attached.error().text, HasSubstr("the pool's " + field + " is "));
      EXPECT_THAT(attached.error().text,
                  ::testing::AnyOf(HasSubstr("this program's is"), HasSubstr("its copy says")));
    }
  }

  const PoolFds fds = formatted(small_geometry(100, 20));
  const PoolMemory memory = PoolMemory::attach(fds, Access::read_write).value();
  ControlBlock& control = memory.control();
  SlotOwners nobody{};
};

TEST_P(PoolMemoryHeader, IsRefusedWhenCorruptedNamingFieldAndBothValues) {
  for (PoolHeader* header : {&control.header, &control.copy}) {
    const PoolHeader sound = *header;
    GetParam().apply(*header);
    expect_refusal(GetParam().field);
    EXPECT_THAT(fsck(memory).violations, ::testing::Contains(HasSubstr(GetParam().field)));
    *header = sound;
    EXPECT_TRUE(PoolMemory::attach(fds, Access::read_write).has_value());
  }
}

TEST_P(PoolMemoryHeader, IsRepairedFromItsCopyAndTheCopyFromIt) {
  const PoolHeader sound = control.header;
  for (PoolHeader* header : {&control.header, &control.copy}) {
    GetParam().apply(*header);
    EXPECT_EQ(repair(memory, nobody).fields, 1u);
    EXPECT_TRUE(PoolMemory::attach(fds, Access::read_write).has_value());
    EXPECT_EQ(control.header.secret.bytes, sound.secret.bytes);
    EXPECT_EQ(control.header.geometry, sound.geometry);
    EXPECT_THAT(fsck(memory).violations, IsEmpty());
  }
}

// A header of another build, or of another pool, contradicts neither its copy nor its checksum.
TEST_P(PoolMemoryHeader, IsRefusedWhenConsistentButOfAnotherPool) {
  GetParam().apply(control.header);
  control.header.checksum = checksum_of(control.header);
  control.copy = control.header;
  const auto attached = PoolMemory::attach(fds, Access::read_write);
  const std::string field = GetParam().test;
  if (field == "secret" || field == "checksum") {
    EXPECT_TRUE(attached.has_value()) << "any secret with a correct checksum is accepted";
    return;
  }
  ASSERT_FALSE(attached.has_value());
  EXPECT_THAT(attached.error().text, HasSubstr("is"));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, PoolMemoryHeader,
    ::testing::Values(
        Corruption{"magic", "magic", [](PoolHeader& h) { h.magic ^= 1; }},
        Corruption{"version", "format version", [](PoolHeader& h) { ++h.format_version; }},
        Corruption{"layout", "layout hash", [](PoolHeader& h) { ++h.layout_hash; }},
        Corruption{"epoch", "epoch (first half)", [](PoolHeader& h) { h.epoch_uuid[0] ^= 4; }},
        Corruption{"epoch_end", "epoch (second half)",
                   [](PoolHeader& h) { h.epoch_uuid[1] ^= 1ull << 63; }},
        Corruption{"device_blocks", "number of device blocks",
                   [](PoolHeader& h) { ++h.geometry.device_blocks; }},
        Corruption{"no_device_blocks", "number of device blocks",
                   [](PoolHeader& h) { h.geometry.device_blocks = 0; }},
        Corruption{"huge_device", "number of device blocks",
                   [](PoolHeader& h) { h.geometry.device_blocks = ~0u; }},
        Corruption{"host_blocks", "number of host blocks",
                   [](PoolHeader& h) { --h.geometry.host_blocks; }},
        Corruption{"huge_host", "number of host blocks",
                   [](PoolHeader& h) { h.geometry.host_blocks = ~0u; }},
        Corruption{"block_size", "tokens per block",
                   [](PoolHeader& h) { ++h.geometry.models[0].tokens_per_block; }},
        Corruption{"layers", "number of layers",
                   [](PoolHeader& h) { ++h.geometry.models[0].kv.layers; }},
        Corruption{"kv_heads", "number of kv heads",
                   [](PoolHeader& h) { ++h.geometry.models[0].kv.kv_heads; }},
        Corruption{"head_size", "head size",
                   [](PoolHeader& h) { ++h.geometry.models[0].kv.head_size; }},
        Corruption{"kv_block_size", "block size of the KV layout",
                   [](PoolHeader& h) { ++h.geometry.models[0].kv.block_size; }},
        Corruption{"dtype", "dtype",
                   [](PoolHeader& h) { h.geometry.models[0].kv.dtype = Dtype::bf16; }},
        Corruption{"pages", "page layout",
                   [](PoolHeader& h) { h.geometry.models[0].kv.pages = PageLayout::packed; }},
        Corruption{"kind", "kind of KV",
                   [](PoolHeader& h) { h.geometry.models[0].kv.kind = KvKind::latent; }},
        Corruption{"fingerprint", "fingerprint",
                   [](PoolHeader& h) { ++h.geometry.models[0].fingerprint; }},
        Corruption{"secret", "hash secret's digest",
                   [](PoolHeader& h) { h.secret.bytes[100] ^= std::byte{16}; }},
        Corruption{"checksum", "checksum", [](PoolHeader& h) { h.checksum ^= 1ull << 40; }}),
    [](const auto& test) { return std::string(test.param.test); });

TEST(PoolMemory, NoFlippedBitMakesAFormattedPoolLookFresh) {
  const PoolFds fds = formatted(small_geometry(8));
  const PoolMemory memory = PoolMemory::attach(fds, Access::read_write).value();
  for (int bit = 0; bit < 64; ++bit) {
    memory.control().formatted.fetch_xor(1ull << bit);
    const auto attached = PoolMemory::attach(fds, Access::read_write);
    ASSERT_FALSE(attached.has_value());
    EXPECT_EQ(attached.error().code, Errc::bad_format)
        << "not_running would mean that it may be formatted";
    EXPECT_THAT(attached.error().text, HasSubstr(std::to_string(kFormatted)));
    memory.control().formatted.fetch_xor(1ull << bit);
  }
}

TEST(PoolMemory, EveryFieldOfTheObjectsHeadersIsCompared) {
  const PoolGeometry geometry = small_geometry(100, 20);
  const PoolFds fds = formatted(geometry);
  const PoolLayout layout(geometry);
  for (const auto& [object, bytes, offset, name] :
       {std::tuple{PoolObject::metadata, layout.metadata_bytes, layout.metadata_header,
                   "kvhive-metadata's "},
        std::tuple{PoolObject::tokens, layout.tokens_bytes, layout.tokens_header,
                   "kvhive-tokens's "}}) {
    const auto map =
        MappedMemory::map(at(fds, object).get(), bytes, Access::read_write, name).value();
    auto& header = *reinterpret_cast<ObjectHeader*>(map.data() + offset);
    const ObjectHeader sound = header;
    const auto expect_refusal = [&](const std::string& field) {
      const auto attached = PoolMemory::attach(fds, Access::read_only);
      ASSERT_FALSE(attached.has_value()) << field;
      EXPECT_EQ(attached.error().code, Errc::bad_format);
      EXPECT_THAT(attached.error().text, HasSubstr(name + field + " is "));
      EXPECT_THAT(attached.error().text, HasSubstr("the pool's is"));
      header = sound;
    };
    header.magic ^= 2;
    expect_refusal("magic");
    header.object ^= 3;
    expect_refusal("number");
    header.layout_hash ^= 1u << 31;
    expect_refusal("layout hash");
    header.epoch_uuid[0] ^= 1;
    expect_refusal("epoch (first half)");
    header.epoch_uuid[1] ^= 1;
    expect_refusal("epoch (second half)");
    EXPECT_TRUE(PoolMemory::attach(fds, Access::read_only).has_value());
  }
}

TEST(PoolMemory, RefusesObjectsOfAPoolOfTheSameShape) {
  PoolFds fds = formatted(small_geometry(100)), other = formatted(small_geometry(100));
  for (const auto object : {PoolObject::metadata, PoolObject::tokens}) {
    std::swap(at(fds, object), at(other, object));
    const auto attached = PoolMemory::attach(fds, Access::read_write);
    ASSERT_FALSE(attached.has_value());
    EXPECT_THAT(attached.error().text, HasSubstr("belongs to another pool"));
    std::swap(at(fds, object), at(other, object));
  }
}

TEST(PoolMemory, RefusesObjectsOfAnotherPool) {
  PoolFds fds = formatted(small_geometry(100));
  PoolFds other = formatted(small_geometry(200));
  for (const auto object : {PoolObject::metadata, PoolObject::tokens, PoolObject::device}) {
    std::swap(at(fds, object), at(other, object));
    const auto attached = PoolMemory::attach(fds, Access::read_write);
    ASSERT_FALSE(attached.has_value());
    EXPECT_EQ(attached.error().code, Errc::layout_mismatch);
    EXPECT_THAT(attached.error().text, HasSubstr("expected"));
    std::swap(at(fds, object), at(other, object));
  }
  EXPECT_TRUE(PoolMemory::attach(fds, Access::read_write).has_value());
}

TEST(PoolMemory, RefusesUnsealedObjects) {
  const PoolGeometry geometry = small_geometry(8);
  PoolFds fds = formatted(geometry);
  at(fds, PoolObject::metadata) = UniqueFd(memfd_create("metadata", MFD_CLOEXEC));
  ASSERT_EQ(
      ftruncate(at(fds, PoolObject::metadata).get(), off_t(PoolLayout(geometry).metadata_bytes)),
      0);
  EXPECT_EQ(PoolMemory::attach(fds, Access::read_write).error().code, Errc::bad_format);
}

TEST(PoolMemory, NeedsEveryObjectToWrite) {
  for (std::size_t i = 0; i < kPoolObjects; ++i) {
    PoolFds fds = formatted(small_geometry(8, 4));
    fds[i] = UniqueFd();
    EXPECT_FALSE(PoolMemory::attach(fds, Access::read_write).has_value()) << i;
  }
}

TEST(PoolMemory, InspectorNeedsNeitherTokensNorPayload) {
  const PoolFds fds = formatted(small_geometry(8, 4));
  PoolFds readers = reopened(fds);
  for (const auto object : {PoolObject::tokens, PoolObject::device, PoolObject::host})
    at(readers, object) = UniqueFd();
  const PoolMemory memory = PoolMemory::attach(readers, Access::read_only).value();
  EXPECT_FALSE(memory.has_tokens());
  EXPECT_THAT(fsck(memory).violations, IsEmpty());

  at(readers, PoolObject::metadata) = UniqueFd();
  EXPECT_FALSE(PoolMemory::attach(readers, Access::read_only).has_value());
}

TEST(PoolMemory, InspectorCannotMakeItsMappingsWritable) {
  const PoolFds fds = formatted(small_geometry(8, 4));
  const PoolFds readers = reopened(fds);
  EXPECT_FALSE(PoolMemory::attach(readers, Access::read_write).has_value());
  const PoolMemory memory = PoolMemory::attach(readers, Access::read_only).value();
  for (void* address :
       {static_cast<void*>(&memory.control()), static_cast<void*>(memory.descriptors()),
        static_cast<void*>(memory.token_row(BlockId{0})),
        static_cast<void*>(memory.arena(Tier::device)),
        static_cast<void*>(memory.arena(Tier::host))}) {
    EXPECT_EQ(mprotect(address, 4096, PROT_READ | PROT_WRITE), -1);
    EXPECT_EQ(errno, EACCES);
  }
}

}  // namespace
}  // namespace kvhive::testing
