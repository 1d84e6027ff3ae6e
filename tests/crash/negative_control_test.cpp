// Proves that the crash tests detect mistakes; a test that cannot fail proves nothing. The mistakes
// that the pool's design avoids are made here on purpose and stepped through like the pool itself.

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <boost/interprocess/containers/map.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/sync/interprocess_mutex.hpp>
#include <boost/interprocess/sync/scoped_lock.hpp>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "pool/care/reaper.hpp"
#include "tests/crash/autopsy.hpp"
#include "tests/crash/pool_image.hpp"
#include "tests/crash/traced_child.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

struct Verdicts {
  std::size_t boundaries = 0;
  std::size_t wrong = 0;
  std::string first;
};

class NegativeControl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden here";
  }

  static void print(const char* name, const Verdicts& verdicts) {
    std::printf("%-44s %6zu boundaries, wrong after a death at %zu  %s\n", name,
                verdicts.boundaries, verdicts.wrong, verdicts.first.c_str());
  }

  /// `wrong_now` tells whether a death at this instruction would leave a wrong state.
  static Verdicts step_through(const std::function<void()>& body,
                               const std::function<bool()>& wrong_now) {
    Verdicts verdicts;
    TracedChild child(body);
    do {
      ++verdicts.boundaries;
      verdicts.wrong += wrong_now();
    } while (child.step());
    return verdicts;
  }

  /// Steps through an operation of the pool and examines it with this autopsy.
  static Verdicts examine(Stage& stage, const Operation& operation, const Autopsy& autopsy) {
    const PoolMemory copy = private_pool(stage.memory().geometry());
    Verdicts verdicts;
    PoolImage image;
    bool is_wrong = false;
    TracedChild child([&] { operation.run(stage); });
    do {
      if (!image.is_of(stage.memory())) {
        image.take(stage.memory());
        image.put(copy);
        const Complaints complaints = autopsy.examine(copy);
        is_wrong = !complaints.empty();
        if (is_wrong && verdicts.first.empty()) verdicts.first = "(" + complaints.front() + ")";
      }
      ++verdicts.boundaries;
      verdicts.wrong += is_wrong;
    } while (child.step());
    return verdicts;
  }
};

/// A shared count of references, and the victim's own count, from which a reaper corrects it.
struct CountedBlock {
  std::atomic<std::uint32_t> references{1};  // another process's
  std::atomic<std::uint32_t> victims{0};

  /// Whether the count is wrong after a reaper has subtracted the victim's own count.
  bool is_wrong_after_reaping() const { return references.load() - victims.load() != 1; }
};

TEST_F(NegativeControl, ASharedCountWithALedgerIsWrongSomewhere) {
  SharedValue<CountedBlock> noted_first, counted_first;
  const Verdicts ledger_first = step_through(
      [&] {
        noted_first->victims.fetch_add(1);
        noted_first->references.fetch_add(1);
        noted_first->references.fetch_sub(1);
        noted_first->victims.fetch_sub(1);
      },
      [&] { return noted_first->is_wrong_after_reaping(); });
  const Verdicts count_first = step_through(
      [&] {
        counted_first->references.fetch_add(1);
        counted_first->victims.fetch_add(1);
        counted_first->victims.fetch_sub(1);
        counted_first->references.fetch_sub(1);
      },
      [&] { return counted_first->is_wrong_after_reaping(); });
  print("shared count and ledger, ledger first", ledger_first);
  print("shared count and ledger, count first", count_first);
  EXPECT_GE(ledger_first.wrong, 2u);
  EXPECT_GE(count_first.wrong, 2u);
}

/// Publishes blocks before their names are written.
bool publish_too_early(Stage& stage) {
  for (std::size_t i = 0; i < 2; ++i) {
    const BlockId block = stage.blocks[i];
    BlockDescriptor& d = stage.memory().descriptors()[block.value];
    const BlockWord word{d.word.load()};
    d.word.store(BlockWord::make(BlockState::ready, word.generation(), word.holders()).bits);
    d.hash_low.store(stage.unknown().chain[i].low);
    d.hash_high.store(stage.unknown().chain[i].high);
    d.uid.store(stage.memory().control().next_serial.fetch_add(1));
    d.parent_uid.store(kRootUid);
  }
  return true;
}

TEST_F(NegativeControl, PublishingBeforeWritingTheContentIsDetected) {
  Stage stage;
  stage.blocks = stage.victim().allocate(Tier::device, 2).value();
  const Operation operation{"publish too early", {}, publish_too_early};
  const Verdicts verdicts = examine(stage, operation, Autopsy(stage, operation));
  print("word before content", verdicts);
  EXPECT_GE(verdicts.wrong, 1u);
}

const Operation& operation_named(const std::string& name) {
  for (const Operation& operation : operations())
    if (operation.name == name) return operation;
  KV_CHECK(false, name);
  std::abort();
}

TEST_F(NegativeControl, AnIncompleteReaperIsDetected) {
  const auto forgetting = [](const char* name, const Autopsy::Cleaner& cleaner) {
    const Operation& operation = operation_named("match: idle blocks");
    Stage stage;
    operation.prepare(stage);
    Autopsy autopsy(stage, operation);
    autopsy.clean_up = cleaner;
    const Verdicts verdicts = examine(stage, operation, autopsy);
    print(name, verdicts);
    EXPECT_EQ(verdicts.wrong, verdicts.boundaries);
  };
  forgetting("no reaper", [](const PoolMemory&) {});
  forgetting("a reaper that forgets the counters", [](const PoolMemory& memory) {
    reap(memory, Stage::kVictim);
    memory.control().tiers[0].used_correction.fetch_add(1);
  });
  forgetting("a reaper that frees published blocks", [](const PoolMemory& memory) {
    for (std::uint32_t id = 1; id < memory.geometry().total_blocks(); ++id) {
      auto& word = memory.descriptors()[id].word;
      const BlockWord now{word.load()};
      if (now.holders() == holder_bit(Stage::kVictim))
        word.store(BlockWord::make(BlockState::free, now.generation(), 0).bits);
    }
    reap(memory, Stage::kVictim);
  });
}

namespace bip = boost::interprocess;

/// The usual design: a map in shared memory, protected by a mutex.
struct LockedMap {
  static constexpr std::size_t kBytes = 64 * 1024;
  using Allocator =
      bip::allocator<std::pair<const int, int>, bip::managed_external_buffer::segment_manager>;
  using Map = bip::map<int, int, std::less<>, Allocator>;

  bip::interprocess_mutex mutex;
  alignas(64) std::byte buffer[kBytes];
};

TEST_F(NegativeControl, AMapBehindAMutexHangsForEver) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: it takes minutes, and Boost's map is not ours";
  SharedValue<LockedMap> shared;
  bip::managed_external_buffer segment(bip::create_only, shared->buffer, LockedMap::kBytes);
  auto& map =
      *segment.construct<LockedMap::Map>("map")(std::less<>(), segment.get_segment_manager());
  const auto insert = [&] {
    const bip::scoped_lock lock(shared->mutex);
    map.emplace(1, 2);
  };
  const std::string start(reinterpret_cast<const char*>(&*shared), sizeof(LockedMap));
  // No other process uses the lock: if it cannot be taken after a death, it never can.
  Verdicts verdicts;
  for (std::size_t boundary = 0;; boundary += 16) {
    TracedChild child(insert);
    bool is_done = false;
    for (std::size_t steps = 0; steps < boundary && !is_done; ++steps) is_done = !child.step();
    if (is_done) break;
    child.kill();
    ++verdicts.boundaries;
    verdicts.wrong += !shared->mutex.try_lock();
    std::memcpy(static_cast<void*>(&*shared), start.data(), start.size());
  }
  print("Boost map behind an interprocess_mutex", verdicts);
  EXPECT_GE(verdicts.wrong, 1u);
}

}  // namespace
}  // namespace kvhive::testing
