// Blocks swaps on their streams and checks which work waits for them and which does not.

#include "actors/gpu/device_swapper.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "actors/gpu/layer_parts.hpp"
#include "tests/actors/gate.hpp"
#include "tests/actors/gpu/device_engine.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;

constexpr std::uint32_t kDeviceBlocks = 8, kHostBlocks = 8;
constexpr std::byte kNew{0xEE};

/// Whether the future becomes ready within 20 s.
template <class T>
bool comes(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}
/// Whether the future is still not ready after 50 ms.
template <class T>
bool stays_away(const std::future<T>& future) {
  return future.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout;
}

class DeviceSwapperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    arena_ = *SharedDeviceMemory::map(device_, pool_.arena.get(), pool_.bytes);
    pool_.memory.set_device_arena(arena_.data());
    pages_ = *LockedPages::lock(device_, host(0), kHostBlocks * kv_.block_bytes(),
                                kv_.block_bytes(), pool_.host_lock.get());
    runner_ = *OrderedStream::open(device_);
    for (std::uint32_t block = 0; block < kDeviceBlocks; ++block) write(device(block), block);
    for (std::uint32_t block = 0; block < kHostBlocks; ++block) write(host(block), 100 + block);
  }

  /// \param aside_blocks size of the aside buffer
  std::unique_ptr<DeviceSwapper> swapper(std::size_t aside_blocks, std::size_t part_bytes = 1) {
    const CopyOnDevice noted = [this, copy = late_copies()](const BlockCopyArgs& args,
                                                            DeviceStream stream) {
      copies_.push_back(args);
      if (before_copy_) before_copy_(args, stream);
      return copy(args, stream);
    };
    auto made = DeviceSwapper::create(
        device_, pool_.memory, {noted, noted},
        {.aside_bytes = aside_blocks * kv_.block_bytes(), .part_bytes = part_bytes});
    KV_CHECK(made.has_value(), made.error().text);
    return std::move(*made);
  }

  std::byte* device(std::uint32_t block) { return arena_.data() + block * kv_.block_bytes(); }
  std::byte* host(std::uint32_t block) {
    return pool_.memory.arena(Tier::host) + block * kv_.block_bytes();
  }
  bool is_to_host(const BlockCopyArgs& args) {
    return args.destination >= host(0) && args.destination < host(kHostBlocks);
  }
  /// Writes bytes that differ between blocks and between layers.
  void write(std::byte* block, std::uint32_t seed) const {
    for (std::size_t i = 0; i < kv_.block_bytes(); ++i) block[i] = byte_of(seed, i);
  }
  static std::byte byte_of(std::uint32_t seed, std::size_t i) {
    return static_cast<std::byte>(seed * 31 + i);
  }
  bool holds(const std::byte* block, std::uint32_t seed, std::size_t from, std::size_t to) const {
    for (std::size_t i = from; i < to; ++i)
      if (block[i] != byte_of(seed, i)) return false;
    return true;
  }
  bool holds(const std::byte* block, std::uint32_t seed) const {
    return holds(block, seed, 0, kv_.block_bytes());
  }
  std::span<const std::byte> bytes(const std::byte* block) const {
    return {block, kv_.block_bytes()};
  }

  /// Becomes ready when the runner's stream has done everything it has so far.
  std::future<void> reached() {
    auto promise = std::make_shared<std::promise<void>>();
    auto future = promise->get_future();
    runner_.handle()->enqueue([promise] { promise->set_value(); });
    return future;
  }
  void hold_up_what_goes_to_the_host(Gate& gate) {
    before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
      if (is_to_host(args)) gate.hold(stream);
    };
  }
  void overwrite(std::uint32_t block) {
    ASSERT_TRUE(device_.fill(device(block), kNew, kv_.block_bytes(), runner_.handle()));
  }

  static StepPlan plan(std::vector<BlockPair> out, std::vector<BlockPair> in) {
    StepPlan plan;
    plan.demotions = std::move(out);
    plan.swap_in = std::move(in);
    plan.work.emplace_back();
    return plan;
  }
  /// Runs a first plan: the host waits for its copies, to measure them.
  void measure(DeviceSwapper& swapper) {
    before_copy_ = {};
    ASSERT_TRUE(swapper.move(plan({{7, 7}}, {})));
    ASSERT_TRUE(swapper.finish({}));
  }

  DevicePool pool_{kDeviceBlocks, kHostBlocks};
  KvLayout kv_ = pool_.memory.geometry().models[0].kv;
  FakeDevice device_;
  SharedDeviceMemory arena_;
  LockedPages pages_;
  OrderedStream runner_;
  std::vector<BlockCopyArgs> copies_;
  std::function<void(const BlockCopyArgs&, DeviceStream)> before_copy_;
};

TEST_F(DeviceSwapperTest, ADemotedBlockMayBeOverwrittenBeforeItReachesTheHost) {
  const auto swapper = this->swapper(2);
  measure(*swapper);
  Gate gate;
  hold_up_what_goes_to_the_host(gate);
  const StepPlan leaving = plan({{1, 3}, {2, 4}}, {});
  ASSERT_TRUE(swapper->move(leaving));
  ASSERT_TRUE(swapper->run_after_demotions(leaving, runner_));
  overwrite(1);
  overwrite(2);
  ASSERT_TRUE(comes(reached()));
  EXPECT_THAT(bytes(device(1)), Each(kNew));
  EXPECT_TRUE(holds(host(3), 103));

  auto finished = std::async(std::launch::async, [&] { return swapper->finish(leaving); });
  // If finish() returned here, blocks would be published before their bytes are copied.
  EXPECT_TRUE(stays_away(finished));
  gate.open();
  ASSERT_TRUE(finished.get());
  EXPECT_TRUE(holds(host(3), 1));
  EXPECT_TRUE(holds(host(4), 2));
}

TEST_F(DeviceSwapperTest, TheRunnerWaitsForDemotionsBeyondTheAsideBuffer) {
  const auto swapper = this->swapper(1);
  measure(*swapper);
  Gate gate;
  hold_up_what_goes_to_the_host(gate);
  const StepPlan leaving = plan({{1, 3}, {2, 4}, {3, 5}}, {});
  ASSERT_TRUE(swapper->move(leaving));
  ASSERT_TRUE(swapper->run_after_demotions(leaving, runner_));
  for (const std::uint32_t block : {1, 2, 3}) overwrite(block);
  const auto computed = reached();
  EXPECT_TRUE(stays_away(computed));
  gate.open();
  EXPECT_TRUE(comes(computed));
  ASSERT_TRUE(swapper->finish(leaving));
  for (const BlockPair& pair : leaving.demotions)
    EXPECT_TRUE(holds(host(pair.destination), pair.source));
}

/// The blocks of preempted sequences are not overwritten in this step.
TEST_F(DeviceSwapperTest, TheRunnerDoesNotWaitForSwapOutOfPreemptedSequences) {
  const auto swapper = this->swapper(1);
  measure(*swapper);
  Gate gate;
  hold_up_what_goes_to_the_host(gate);
  StepPlan leaving = plan({{1, 3}}, {});
  leaving.swap_out = {{2, 4}, {5, 6}};
  ASSERT_TRUE(swapper->move(leaving));
  ASSERT_TRUE(swapper->run_after_demotions(leaving, runner_));
  overwrite(1);
  ASSERT_TRUE(comes(reached()));
  EXPECT_TRUE(holds(host(4), 104));
  gate.open();
  ASSERT_TRUE(swapper->finish(leaving));
  EXPECT_TRUE(holds(host(3), 1) && holds(host(4), 2) && holds(host(6), 5));
}

TEST_F(DeviceSwapperTest, APlanWithoutWorkDemotesDirectlyToTheHost) {
  const auto swapper = this->swapper(4);
  measure(*swapper);
  copies_.clear();
  StepPlan leaving = plan({{1, 3}, {2, 4}}, {});
  leaving.work.clear();
  ASSERT_TRUE(swapper->move(leaving));
  ASSERT_TRUE(swapper->finish(leaving));
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].source, device(0));
  EXPECT_TRUE(holds(host(4), 2));
}

/// Each step can use the aside buffer, because the last step's copies have left it.
TEST_F(DeviceSwapperTest, StepsReuseTheAsideBuffer) {
  const auto swapper = this->swapper(2);
  for (std::uint32_t step = 0; step < 40; ++step) {
    const std::uint32_t a = 1 + step % 6, b = 1 + (step + 1) % 6;
    write(device(a), step), write(device(b), step + 1);
    const StepPlan leaving = plan({{a, b}, {b, a}}, {});
    ASSERT_TRUE(swapper->move(leaving));
    ASSERT_TRUE(swapper->run_after_demotions(leaving, runner_));
    overwrite(a), overwrite(b);
    ASSERT_TRUE(runner_.finish());
    ASSERT_TRUE(swapper->finish(leaving));
    ASSERT_TRUE(holds(host(b), step) && holds(host(a), step + 1)) << step;
  }
}

TEST_F(DeviceSwapperTest, ALayerIsReadyBeforeTheNextIsCopied) {
  const auto swapper = this->swapper(2);
  ASSERT_EQ(swapper->parts().count(), 4u);
  measure(*swapper);
  std::vector<Gate> gates(4);
  std::uint32_t part = 0;
  before_copy_ = [&](const BlockCopyArgs&, DeviceStream stream) { gates[part++].hold(stream); };
  const StepPlan coming = plan({}, {{1, 2}, {4, 3}});
  ASSERT_TRUE(swapper->move(coming));
  ASSERT_EQ(part, 4u);
  for (std::int32_t layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(swapper->run_after_layer(coming, layer, runner_));
    const auto computed = reached();
    EXPECT_TRUE(stays_away(computed)) << layer;
    gates[layer].open();
    ASSERT_TRUE(comes(computed)) << layer;
    const std::size_t end = static_cast<std::size_t>(layer + 1) * kv_.layer_bytes();
    EXPECT_TRUE(holds(device(2), 101, 0, end) && holds(device(3), 104, 0, end)) << layer;
  }
  EXPECT_TRUE(swapper->finish(coming));
}

TEST_F(DeviceSwapperTest, RunAfterSwapInWaitsForAllLayers) {
  const auto swapper = this->swapper(2);
  measure(*swapper);
  Gate last;
  std::uint32_t part = 0;
  before_copy_ = [&](const BlockCopyArgs&, DeviceStream stream) {
    if (++part == 4) last.hold(stream);
  };
  const StepPlan coming = plan({}, {{1, 2}});
  ASSERT_TRUE(swapper->move(coming));
  ASSERT_TRUE(swapper->run_after_swap_in(coming, runner_));
  const auto computed = reached();
  EXPECT_TRUE(stays_away(computed));
  last.open();
  ASSERT_TRUE(comes(computed));
  EXPECT_TRUE(holds(device(2), 101));
  EXPECT_TRUE(swapper->finish(coming));
}

/// Both through the aside buffer and directly.
TEST_F(DeviceSwapperTest, ABlockIsOverwrittenOnlyAfterItsBytesAreCopiedAway) {
  for (const std::size_t aside : {0, 1}) {
    const auto swapper = this->swapper(aside);
    measure(*swapper);
    Gate gate;
    const std::byte* const leaves = device(0);
    before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
      if (args.source == leaves) gate.hold(stream);
    };
    write(device(1), 1), write(host(3), 103), write(host(5), 105);
    const StepPlan both = plan({{1, 3}}, {{5, 1}});
    ASSERT_TRUE(swapper->move(both));
    auto finished = std::async(std::launch::async, [&] { return swapper->finish(both); });
    EXPECT_TRUE(stays_away(finished));
    EXPECT_TRUE(holds(device(1), 1)) << aside;
    gate.open();
    ASSERT_TRUE(finished.get());
    EXPECT_TRUE(holds(device(1), 105)) << aside;
    EXPECT_TRUE(holds(host(3), 1)) << aside;
  }
}

TEST_F(DeviceSwapperTest, ABlockIsZeroedForAnotherDomainOnlyAfterItsBytesAreCopiedAway) {
  for (const std::size_t aside : {0, 1}) {
    const auto swapper = this->swapper(aside);
    measure(*swapper);
    Gate gate;
    const std::byte* const leaves = device(0);
    before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
      if (args.source == leaves) gate.hold(stream);
    };
    write(device(1), 1), write(host(3), 103);
    StepPlan leaving = plan({{1, 3}}, {});
    leaving.domain_changes = {{BlockId{1}, DomainId{2}}};
    auto moved = std::async(std::launch::async, [&] { return swapper->move(leaving); });
    EXPECT_TRUE(stays_away(moved));
    EXPECT_TRUE(holds(device(1), 1)) << aside;
    gate.open();
    ASSERT_TRUE(moved.get());
    EXPECT_THAT(bytes(device(1)), Each(std::byte{0}));
    ASSERT_TRUE(swapper->finish(leaving));
    EXPECT_TRUE(holds(host(3), 1)) << aside;
  }
}

TEST_F(DeviceSwapperTest, ZeroingDoesNotWaitForTheHost) {
  const auto swapper = this->swapper(1);
  measure(*swapper);
  Gate gate;
  hold_up_what_goes_to_the_host(gate);
  StepPlan leaving = plan({{1, 3}}, {});
  leaving.domain_changes = {{BlockId{1}, DomainId{2}}};
  auto moved = std::async(std::launch::async, [&] { return swapper->move(leaving); });
  EXPECT_TRUE(comes(moved));
  gate.open();
  ASSERT_TRUE(moved.get());
  ASSERT_TRUE(swapper->finish(leaving));
  EXPECT_TRUE(holds(host(3), 1));
}

/// Kernels read the pairs on the device, after the call that started the copy has returned.
TEST_F(DeviceSwapperTest, PairsArePageLockedAndOutliveThePlan) {
  const auto swapper = this->swapper(1);
  measure(*swapper);
  Gate gate;
  before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
    gate.hold(stream);
    auto* const pairs = reinterpret_cast<std::byte*>(const_cast<BlockPair*>(args.pairs));
    const auto again = device_.lock_pages(pairs, args.pairs_count * sizeof(BlockPair));
    EXPECT_FALSE(again) << "these pairs were not page-locked";
  };
  StepPlan both = plan({{1, 3}, {2, 4}}, {{5, 6}});
  ASSERT_TRUE(swapper->move(both));
  for (auto* pairs : {&both.demotions, &both.swap_in})
    std::ranges::fill(*pairs, BlockPair{0, 0});  // as if the plan had been freed
  gate.open();
  ASSERT_TRUE(swapper->finish(both));
  EXPECT_TRUE(holds(host(3), 1));
  EXPECT_TRUE(holds(host(4), 2));
  EXPECT_TRUE(holds(device(6), 105));
  EXPECT_TRUE(holds(host(0), 100));
}

TEST_F(DeviceSwapperTest, TheLargestPlanFits) {
  const auto swapper = this->swapper(kHostBlocks);
  StepPlan most = plan({}, {});
  for (std::uint32_t block = 0; block < kHostBlocks; ++block) most.demotions.push_back({1, block});
  for (std::uint32_t block = 0; block < kDeviceBlocks; ++block) most.swap_in.push_back({0, block});
  ASSERT_TRUE(swapper->move(most));
  EXPECT_TRUE(swapper->finish(most));
}

TEST_F(DeviceSwapperTest, TheDestructorWaitsForCopies) {
  auto swapper = this->swapper(1);
  measure(*swapper);
  const std::size_t before = device_.leftovers();
  Gate gate;
  before_copy_ = [&](const BlockCopyArgs&, DeviceStream stream) { gate.hold(stream); };
  ASSERT_TRUE(swapper->move(plan({{1, 3}, {2, 4}}, {{5, 6}})));
  auto ended = std::async(std::launch::async, [&] { swapper.reset(); });
  EXPECT_TRUE(stays_away(ended));
  EXPECT_EQ(device_.leftovers(), before);
  gate.open();
  ended.get();
  EXPECT_TRUE(holds(host(3), 1) && holds(host(4), 2) && holds(device(6), 105));
  EXPECT_LT(device_.leftovers(), before);
}

TEST_F(DeviceSwapperTest, AllocatesNothingWithoutAHostTier) {
  DevicePool alone(kDeviceBlocks, 0);
  const std::size_t before = device_.leftovers();
  const auto swapper = DeviceSwapper::create(device_, alone.memory, {late_copies(), late_copies()});
  ASSERT_TRUE(swapper);
  EXPECT_EQ(device_.leftovers() - before, 2 * (2 + (*swapper)->parts().count()));
}

TEST_F(DeviceSwapperTest, CopiesInThePartsOfItsOwnModel) {
  PoolGeometry geometry = DevicePool::geometry(kDeviceBlocks, kHostBlocks);
  geometry.model_count = 2;
  ModelCache& second = geometry.models[1] = geometry.models[0];
  second.kv.layers = 3;
  second.kv.padding = static_cast<std::uint32_t>(geometry.models[0].kv.layer_bytes());
  second.groups.first = 1;
  const PoolMemory memory = private_pool(geometry);
  for (const auto& [model, parts] : {std::pair{0, 4u}, {1, 3u}})
    EXPECT_EQ((*DeviceSwapper::create(device_, memory, {late_copies(), late_copies()},
                                      {.part_bytes = 1}, ModelId{static_cast<std::uint8_t>(model)}))
                  ->parts()
                  .count(),
              parts);
}

// -- parts ----------------------------------------------------------------------------------------

KvLayout layers_of(std::uint32_t layers, std::size_t layer_bytes) {
  return {.layers = layers,
          .kv_heads = 1,
          .head_size = static_cast<std::uint32_t>(layer_bytes / 4),
          .block_size = 1,
          .dtype = Dtype::bf16};
}

TEST(LayerParts, CoverEveryLayerOnce) {
  for (std::uint32_t layers = 1; layers <= 80; ++layers)
    for (const std::size_t least : {1, 4096, 12 * 4096, 1 << 30}) {
      const LayerParts parts(layers_of(layers, 4096), least);
      ASSERT_GE(parts.count(), 1u);
      ASSERT_LE(parts.count(), std::min(LayerParts::kMostParts, layers));
      std::size_t end = 0, smallest = parts.bytes(0);
      for (std::uint32_t part = 0; part < parts.count(); ++part) {
        EXPECT_EQ(parts.offset(part), end);
        EXPECT_EQ(parts.offset(part), std::size_t{parts.first_layer(part)} * 4096);
        end += parts.bytes(part);
        smallest = std::min(smallest, parts.bytes(part));
      }
      EXPECT_EQ(end, std::size_t{layers} * 4096);
      EXPECT_EQ(smallest, parts.least_bytes());
      EXPECT_TRUE(parts.count() == 1 || smallest >= least);
    }
}

TEST(LayerParts, HaveAtLeastTheGivenSize) {
  const auto count = [](std::uint32_t layers, std::size_t least) {
    return LayerParts(layers_of(layers, 4096), least).count();
  };
  EXPECT_EQ(count(32, 8 * 4096), 4u);
  EXPECT_EQ(count(32, 9 * 4096), 3u);
  EXPECT_EQ(count(32, 11 * 4096), 2u);
  EXPECT_EQ(count(32, 17 * 4096), 1u);
  EXPECT_EQ(count(3, 1), 3u);
  EXPECT_EQ(count(1, 1), 1u);
}

}  // namespace
}  // namespace kvhive::testing
