// Steps of a model on a fake GPU while their swaps are blocked. Layers compute before later layers
// are copied in and while blocks are copied out; tokens are the same as without swaps.

#include "actors/gpu/gpu_runner.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include "kernels/cuda/cuda_kernels.hpp"
#include "models/sampling/logits_processor.hpp"
#include "tests/actors/gate.hpp"
#include "tests/models/gpu/gpu_model.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kBlockSize = 4, kDeviceBlocks = 16, kHostBlocks = 8;
constexpr SeqId kSequence{1};

class GpuRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    arena_ = *DeviceBuffer::allocate(device_, kDeviceBlocks * kv_.block_bytes());
    memory_.set_device_arena(arena_.data());
    pages_ = *LockedPages::lock(device_, memory_.arena(Tier::host), kHostBlocks * kv_.block_bytes(),
                                kv_.block_bytes(), host_lock_.get());
    // Copies by kernel, which read pairs late.
    const auto copy = [this](const BlockCopyArgs& args, DeviceStream stream) {
      if (before_copy_) before_copy_(args, stream);
      return swap_blocks_cuda(args, std::numeric_limits<std::size_t>::max(), stream);
    };
    swapper_ = *DeviceSwapper::create(device_, memory_, {copy, copy}, {.part_bytes = 1});
    ASSERT_EQ(swapper_->parts().count(), 4u);
    GpuTransformer transformer = model_.another();
    const DeviceStream stream = transformer.stream().handle();
    runner_ = std::make_unique<GpuRunner>(
        std::move(transformer), *swapper_,
        [](const BlockCopyArgs& args, DeviceStream on) { return swap_blocks_cuda(args, 0, on); },
        arena_.data(), kv_);
    stream->enqueue([this] { computing_ = std::this_thread::get_id(); });
    // The swapper waits for the first plan's copies, to measure them.
    StepPlan first;
    first.swap_out = {{15, 7}};
    ASSERT_TRUE(run(first).empty());

    StepPlan prompt = work(0, tokens_, {{1}, {2}, {3}});
    next_ = run(prompt).at(0);
    expected_ = run(work(10, {next_}, {{1}, {2}, {3}})).at(0);
  }

  /// Makes the stream slower than the model, so that a missing wait shows.
  static void take_a_while(DeviceStream stream) {
    stream->enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
  }
  static StepPlan work(std::uint32_t start, std::vector<TokenId> tokens,
                       std::vector<BlockId> blocks) {
    StepPlan plan;
    plan.work.push_back({kSequence, start, std::move(tokens), std::move(blocks), true, {}, 0});
    return plan;
  }
  std::vector<TokenId> run(const StepPlan& plan) {
    auto sampled = swapper_->move(plan).and_then([&](double) { return runner_->run(plan); });
    KV_CHECK(sampled.has_value(), sampled.error().text);
    std::vector<TokenId> tokens;
    for (const SampledToken& token : sampled->sampled) tokens.push_back(token.token.token);
    return tokens;
  }
  void swap_out(std::vector<BlockPair> pairs) {
    StepPlan plan;
    plan.swap_out = std::move(pairs);
    ASSERT_TRUE(run(plan).empty());
  }
  bool is_to_host(const BlockCopyArgs& args) const {
    const std::byte* const host = memory_.arena(Tier::host);
    return args.destination >= host && args.destination < host + kHostBlocks * kv_.block_bytes();
  }
  /// Calls `act` before each piece of the model's work; the first piece has number 1.
  void before_model_work(std::function<void(std::uint64_t number)> act) {
    works_ = 0;
    FakeFaults faults;
    faults.before_work = [this, act = std::move(act)](std::uint64_t) {
      if (std::this_thread::get_id() == computing_) act(++works_);
    };
    device_.set_faults(faults);
  }

  GpuModel model_{KVHIVE_DEMO_DIR,
                  {.tokens = 16, .sequences = 2, .logit_rows = 2, .likeliest = 1},
                  Dtype::bf16,
                  kBlockSize,
                  kDeviceBlocks};
  FakeDevice& device_ = model_.device();
  KvLayout kv_ = kv_layout(model_.config(), one_group(model_.config()), kBlockSize, Dtype::bf16);
  PoolMemory memory_ = private_pool([this] {
    PoolGeometry geometry = small_geometry(kDeviceBlocks, kHostBlocks, kBlockSize);
    geometry.models[0].kv = kv_;
    geometry.device = DeviceKind::cuda;
    return geometry;
  }());
  UniqueFd host_lock_{memfd_create("host-arena", MFD_CLOEXEC)};
  DeviceBuffer arena_;
  LockedPages pages_;
  std::function<void(const BlockCopyArgs&, DeviceStream)> before_copy_;
  std::atomic<std::thread::id> computing_{};  ///< thread of the runner's stream
  std::uint64_t works_ = 0;                   ///< pieces of work of that stream so far
  std::unique_ptr<DeviceSwapper> swapper_;
  std::unique_ptr<GpuRunner> runner_;
  std::vector<TokenId> tokens_{3, 14, 15, 92, 65, 35, 89, 79, 32, 38};
  TokenId next_ = 0, expected_ = 0;  ///< the token after `tokens_`, and the one after that
};

/// One row with rules, one without, in one step.
TEST_F(GpuRunnerTest, RulesOfTokensChangeTheTokenAndNotWhatIsSaidOfIt) {
  const auto run_with = [&](const TokenRules& rules, std::vector<TokenId> answer) {
    StepPlan plan = work(10, {next_}, {{1}, {2}, {3}});
    plan.work.push_back(plan.work.front());
    plan.work.back().seq = SeqId{2};
    plan.work.back().logits = *LogitsProcessor::make(
        rules, {}, {}, {}, static_cast<std::uint32_t>(model_.config().vocab_size));
    plan.work.back().answer = std::move(answer);
    plan.work.back().logprobs = 1;
    auto sampled = swapper_->move(plan).and_then([&](double) { return runner_->run(plan); });
    KV_CHECK(sampled && sampled->sampled.size() == 2);
    EXPECT_EQ(sampled->sampled[0].token.token, expected_);
    return sampled->sampled[1].token;
  };
  const GeneratedToken biased = run_with({.logit_bias = {{7, 100}}}, {});
  EXPECT_EQ(biased.token, 7);
  EXPECT_EQ(biased.top.at(0).token, expected_);
  EXPECT_LT(biased.logprob, biased.top[0].logprob);
  EXPECT_NE(run_with({.repetition_penalty = 1e6f}, {expected_, 9}).token, expected_);
  EXPECT_EQ(run_with({.frequency_penalty = 1}, {9}).token, expected_);
}

TEST_F(GpuRunnerTest, ALayerComputesBeforeTheNextIsCopied) {
  swap_out({{1, 1}, {2, 2}, {3, 3}});
  Gate gate;
  before_model_work([&](std::uint64_t number) {
    if (number == 8) gate.open();
  });
  std::uint32_t part = 0;
  before_copy_ = [&](const BlockCopyArgs&, DeviceStream stream) {
    if (part++ != 1) return;
    gate.hold(stream);
    take_a_while(stream);
  };
  StepPlan plan = work(10, {next_}, {{4}, {5}, {6}});
  plan.swap_in = {{1, 4}, {2, 5}, {3, 6}};
  EXPECT_EQ(run(plan), std::vector{expected_});
  EXPECT_EQ(part, 4u);
  EXPECT_TRUE(gate.was_opened_in_time()) << "no layer computed before all were copied in";
}

TEST_F(GpuRunnerTest, CopyOnWriteWaitsForAllLayers) {
  swap_out({{1, 1}, {2, 2}, {3, 3}});
  std::uint32_t part = 0;
  before_copy_ = [&](const BlockCopyArgs&, DeviceStream stream) {
    if (part++ == 3) take_a_while(stream);
  };
  StepPlan plan = work(10, {next_}, {{4}, {5}, {7}});
  plan.swap_in = {{1, 4}, {2, 5}, {3, 6}};
  plan.copies = {{6, 7}};
  EXPECT_EQ(run(plan), std::vector{expected_});
}

/// The step ends only when both are done, whichever takes longer.
TEST_F(GpuRunnerTest, TheModelComputesWhileBlocksAreCopiedOut) {
  before_model_work([](std::uint64_t) {});
  ASSERT_EQ(run(work(10, {next_}, {{1}, {2}, {3}})), std::vector{expected_});
  const std::uint64_t last = works_;
  ASSERT_GT(last, 20u);

  Gate gate;
  before_model_work([&](std::uint64_t number) {
    if (number == last) gate.open();
  });
  before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
    if (!is_to_host(args)) return;
    gate.hold(stream);
    take_a_while(stream);
  };
  const std::vector<std::byte> left(arena_.data() + 2 * kv_.block_bytes(),
                                    arena_.data() + 3 * kv_.block_bytes());
  StepPlan plan = work(10, {next_}, {{1}, {2}, {3}});
  plan.demotions = {{2, 5}};
  EXPECT_EQ(run(plan), std::vector{expected_});
  EXPECT_TRUE(gate.was_opened_in_time()) << "the model waited for the copies to the host";
  EXPECT_TRUE(std::ranges::equal(
      left, std::span(memory_.arena(Tier::host) + 5 * kv_.block_bytes(), kv_.block_bytes())));
}

TEST_F(GpuRunnerTest, ATokenStandsBehindADraftThatWasRight) {
  ASSERT_EQ(run(work(10, {next_}, {{1}, {2}, {3}})), std::vector{expected_});
  const std::vector<TokenId> third = run(work(11, {expected_}, {{1}, {2}, {3}}));
  StepPlan plan = work(10, {next_, expected_}, {{1}, {2}, {3}});
  plan.work[0].drafts = 1;
  EXPECT_EQ(run(plan), (std::vector{expected_, third.at(0)}));
  plan.work[0].tokens[1] = expected_ + 1;
  EXPECT_EQ(run(plan), std::vector{expected_});
}

TEST_F(GpuRunnerTest, ADeviceThatIsLostInASwapEndsTheStep) {
  StepPlan plan = work(10, {next_}, {{1}, {2}, {3}});
  plan.demotions = {{2, 5}};
  before_copy_ = [&](const BlockCopyArgs& args, DeviceStream stream) {
    if (is_to_host(args)) stream->enqueue([] { throw std::runtime_error("a bus error"); });
  };
  ASSERT_TRUE(swapper_->move(plan));
  const auto sampled = runner_->run(plan);
  ASSERT_FALSE(sampled);
  EXPECT_EQ(sampled.error().code, Errc::device_lost);
}

}  // namespace
}  // namespace kvhive::testing
