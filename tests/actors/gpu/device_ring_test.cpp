// Engines over a fake GPU. Tokens are the oracle's, however much is swapped and however slow the
// device is. When a device is lost or an engine is killed in any of its calls, other engines lose
// nothing.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/actors/gpu/device_engine.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kDeviceBlocks = 12, kHostBlocks = 16;
constexpr ProcessSlot kFirst{0}, kSecond{1};
constexpr DomainId kOurs{1}, kTheirs{2};

RingConfig swapping() {
  RingConfig config;
  config.scheduler.max_num_seqs = config.block_manager.max_num_seqs = 4;
  config.scheduler.max_num_batched_tokens = 24;
  config.scheduler.max_model_len = (kDeviceBlocks - 1) * 4;
  config.block_manager.preemption = PreemptionMode::swap;
  return config;
}

struct Request {
  std::vector<TokenId> prompt;
  GenerationParams params;
  DomainId domain;
  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
};

/// Prompts of two domains that share prefixes. Together they need more blocks than the pool has.
std::vector<Request> make_requests(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = requests[i];
    request.prompt.assign(9, static_cast<TokenId>(i % 2 + 1));
    for (std::size_t t = 0; t < 1 + random() % 8; ++t)
      request.prompt.push_back(static_cast<TokenId>(random() % kOracleVocab));
    request.params.max_tokens = static_cast<std::uint32_t>(4 + random() % 16);
    request.params.ignore_eos = true;
    request.domain = i % 3 == 0 ? kTheirs : kOurs;
  }
  return requests;
}

void submit(PlainRing& ring, const std::vector<Request>& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    ring.scheduler().submit({{1, static_cast<std::uint32_t>(i)},
                             requests[i].prompt,
                             {},
                             requests[i].params,
                             std::make_shared<RecordingSink>(requests[i].recording),
                             requests[i].domain});
}

Expected<void> finish(PlainRing& ring) {
  while (!ring.is_quiet())
    if (auto advanced = ring.advance(); !advanced) return forward_error(advanced);
  return {};
}

void expect_right(const std::vector<Request>& requests, const RingConfig& config) {
  for (const Request& request : requests)
    ASSERT_EQ(request.recording->tokens,
              oracle_output(request.prompt, request.params, config.scheduler.max_model_len).tokens);
}

void expect_whole(const PoolMemory& memory) {
  const FsckReport report = fsck(memory);
  ASSERT_TRUE(report.violations.empty()) << report.violations.front();
}

/// Runs an engine; returns the exit status of its process.
int serve(FakeDevice& device, DevicePool& pool, ProcessSlot slot,
          const std::vector<Request>& requests) {
  auto engine = DeviceEngine::attach(device, pool, slot, swapping());
  if (!engine) return kExitDeviceLost;
  submit((*engine)->ring(), requests);
  return finish((*engine)->ring()) ? 0 : kExitDeviceLost;
}

TEST(DeviceRing, TokensAreTheOraclesHoweverSlowTheDevice) {
  constexpr int kUneven = -1;
  std::uint64_t swaps = 0, hits = 0, demoted = 0, promoted = 0;
  for (const int delay_us : {0, 20, 200, kUneven})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      DevicePool pool(kDeviceBlocks, kHostBlocks);
      FakeDevice device;
      FakeFaults faults;
      if (delay_us != kUneven)
        faults.delay = std::chrono::microseconds(delay_us);
      else
        faults.before_work = [](std::uint64_t) {  // lets some streams run ahead of others
          thread_local std::minstd_rand random{std::random_device{}()};
          if (random() % 4 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
        };
      device.set_faults(faults);
      const auto requests = make_requests(seed, 12);
      {
        auto engine = DeviceEngine::attach(device, pool, kFirst, swapping());
        ASSERT_TRUE(engine) << engine.error().text;
        submit((*engine)->ring(), requests);
        ASSERT_TRUE(finish((*engine)->ring()));
        expect_right(requests, swapping());
        SlotCounters& counters = pool.memory.control().processes[kFirst.value].counters;
        swaps += counters["preemptions_swap"];
        hits += counters["hit_blocks"];
        demoted += counters["demoted_blocks"];
        promoted += counters["promoted_blocks"];
        const BlockPool& blocks = (*engine)->ring().pool();
        for (const Tier tier : {Tier::device, Tier::host})
          EXPECT_EQ(blocks.available(tier), blocks.capacity(tier));
      }
      expect_whole(pool.memory);
      EXPECT_EQ(device.leftovers(), 0u);
    }
  EXPECT_GT(swaps, 20u);  // fewer would mean that the runs tested little
  EXPECT_GT(hits, 20u);
  EXPECT_GT(demoted, 20u);
  EXPECT_GT(promoted, 20u);
}

/// Two engines run one after the other, each with its own device over the same memory.
TEST(DeviceRing, ASecondEngineUsesTheBlocksOfTheFirst) {
  DevicePool pool(32, 0);
  const auto requests = make_requests(7, 4);
  {
    FakeDevice device;
    ASSERT_EQ(serve(device, pool, kFirst, requests), 0);
  }
  const auto again = make_requests(7, 4);
  FakeDevice device;
  ASSERT_EQ(serve(device, pool, kSecond, again), 0);
  expect_right(again, swapping());
  EXPECT_GE(pool.memory.control().processes[kSecond.value].counters["hit_blocks"], 8u);
}

class DeviceRingFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  }

  /// Runs an engine in a process of its own, after calling `arm` there.
  template <class Arm>
  int run_child(DevicePool& pool, std::uint64_t seed, Arm&& arm) {
    ChildProcess child([&] {
      FakeDevice device;
      arm(device);
      _exit(serve(device, pool, kFirst, make_requests(seed, kRequests)));
    });
    return child.wait();
  }

  /// Checks the pool after an engine's death: no block is lost, and another engine uses the
  /// published blocks and generates the right tokens.
  void expect_nothing_lost(DevicePool& pool, std::uint64_t seed) {
    reap(pool.memory, kFirst);
    expect_whole(pool.memory);
    const auto requests = make_requests(seed, kRequests);
    FakeDevice device;
    {
      auto engine = DeviceEngine::attach(device, pool, kSecond, swapping());
      ASSERT_TRUE(engine) << engine.error().text;
      submit((*engine)->ring(), requests);
      ASSERT_TRUE(finish((*engine)->ring()));
      expect_right(requests, swapping());
      const BlockPool& blocks = (*engine)->ring().pool();
      for (const Tier tier : {Tier::device, Tier::host})
        ASSERT_EQ(blocks.available(tier), blocks.capacity(tier));
    }
    expect_whole(pool.memory);
    ASSERT_EQ(device.leftovers(), 0u);
  }

  static constexpr std::size_t kRequests = 5;
  static constexpr int kRounds = kUnderAddressSanitizer ? 150 : 1000;
  std::mt19937_64 random_{2026};
};

/// How many calls and pieces of work an undisturbed run has.
struct Extent {
  std::uint64_t calls = 0, works = 0;
};
Extent extent_of(std::uint64_t seed) {
  DevicePool pool(kDeviceBlocks, kHostBlocks);
  FakeDevice device;
  KV_CHECK(serve(device, pool, kFirst, make_requests(seed, 5)) == 0);
  return {device.calls(), device.works()};
}

TEST_F(DeviceRingFaults, ALostDeviceEndsItsEngineAndNothingElse) {
  const Extent extent = extent_of(1);
  int lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    DevicePool pool(kDeviceBlocks, kHostBlocks);
    const bool in_call = round % 2 == 0;
    const std::uint64_t number = 1 + random_() % (in_call ? extent.calls : extent.works);
    const int status = run_child(pool, 1, [=](FakeDevice& device) {
      FakeFaults faults;
      (in_call ? faults.call : faults.work) = number;
      device.set_faults(faults);
    });
    ASSERT_TRUE(WIFEXITED(status)) << status;
    ASSERT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kExitDeviceLost) << status;
    lost += WEXITSTATUS(status) == kExitDeviceLost;
    ASSERT_NO_FATAL_FAILURE(expect_nothing_lost(pool, 1));
  }
  std::printf("%d of %d engines lost their device\n", lost, kRounds);
  EXPECT_GT(lost, kRounds * 9 / 10);
}

TEST_F(DeviceRingFaults, AnEngineKilledInAnyOfItsCallsLosesNothing) {
  constexpr int kAttaching = 50;  // in these rounds, each call made while attaching is hit once
  const Extent extent = extent_of(2);
  SharedValue<std::array<char, 24>> last;
  std::map<std::string, int> killed_in;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    DevicePool pool(kDeviceBlocks, kHostBlocks);
    const bool in_call = round % 2 == 0;
    const std::uint64_t number = in_call && round < kAttaching
                                     ? 1 + static_cast<std::uint64_t>(round) / 2
                                     : 1 + random_() % (in_call ? extent.calls : extent.works);
    const int status = run_child(pool, 2, [&](FakeDevice& device) {
      FakeFaults faults;
      faults.before_call = [&, in_call, number](std::uint64_t call, const char* name) {
        if (in_call && call == number) {
          std::strncpy(last->data(), name, last->size() - 1);
          raise(SIGKILL);
        }
      };
      faults.before_work = [&, in_call, number](std::uint64_t work) {
        if (!in_call && work == number) {
          std::strncpy(last->data(), "work on a stream", last->size() - 1);
          raise(SIGKILL);
        }
      };
      device.set_faults(faults);
    });
    if (WIFSIGNALED(status)) ++killed_in[last->data()];
    ASSERT_NO_FATAL_FAILURE(expect_nothing_lost(pool, 2));
  }
  int killed = 0;
  for (const auto& [name, times] : killed_in) {
    std::printf("  killed in %-18s %4d times\n", name.c_str(), times);
    killed += times;
  }
  std::printf("%d of %d engines killed\n", killed, kRounds);
  EXPECT_GT(killed, kRounds * 9 / 10);
  for (const char* name : {"map_shared", "lock_pages", "allocate", "create_stream", "create_event",
                           "copy", "record", "wait", "synchronize", "fill", "work on a stream"})
    EXPECT_GT(killed_in[name], 0) << name;
}

}  // namespace
}  // namespace kvhive::testing
