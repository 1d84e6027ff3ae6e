// SIGKILL at every instruction of every operation on the pool.
//
// The test steps the victim through the operation once. At each instruction boundary it copies the
// pool's bytes and examines the copy as if the victim had just been killed. A kill would leave
// exactly this memory: no other process writes meanwhile, the victim has one thread, all stores of
// a stopped thread are done, and the kernel changes no byte of a dying process's shared memory. So
// all boundaries cost one pass instead of one process each. Real kills at a sample of the
// boundaries must leave one of the images of that pass.

#include <gmock/gmock.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>

#include "tests/crash/autopsy.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/pool_image.hpp"
#include "tests/crash/settings.hpp"
#include "tests/crash/traced_child.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

struct Tally {
  std::size_t boundaries = 0;  ///< before each instruction, and after the last
  std::size_t images = 0;      ///< boundaries at which shared memory differs from the one before
  std::size_t kills = 0;       ///< real kills
  std::size_t violations = 0;
  std::string first;

  void add(std::size_t boundary, const Complaints& complaints) {
    if (complaints.empty() || violations++ != 0) return;
    first = "at boundary " + std::to_string(boundary) + ": " + ::testing::PrintToString(complaints);
  }
};

void print(const std::string& name, const Tally& tally) {
  static bool is_first = true;
  if (std::exchange(is_first, false))
    std::printf("%-48s %10s %8s %10s %10s\n", "operation", "boundaries", "images", "real kills",
                "violations");
  std::printf("%-48s %10zu %8zu %10zu %10zu\n", name.c_str(), tally.boundaries, tally.images,
              tally.kills, tally.violations);
}

class EveryInstruction : public ::testing::TestWithParam<Operation> {
 protected:
  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden here";
  }

  /// Steps through the whole operation and examines the pool at each boundary.
  void step_through(Stage& stage, const Autopsy& autopsy) {
    const PoolMemory copy = private_pool(stage.memory().geometry());
    PoolImage image;
    TracedChild child([&] { *has_done_it_ = GetParam().run(stage); });
    do {
      if (!image.is_of(stage.memory())) {
        image.take(stage.memory());
        seen_.insert(image.digest());
        image.put(copy);
        complaints_ = autopsy.examine(copy);
        ++tally_.images;
      }
      tally_.add(tally_.boundaries, complaints_);
      ++tally_.boundaries;
    } while (child.step());
  }

  /// Kills a new process at each of a sample of the boundaries. A boundary costs as many steps as
  /// it is far from the start, so long operations get fewer samples (but see
  /// must_kill_everywhere()).
  void kill_at_sample(Stage& stage, const Autopsy& autopsy, const PoolImage& start) {
    constexpr std::size_t kMostSteps = 40'000;
    const std::size_t n = tally_.boundaries;
    const std::size_t stride =
        must_kill_everywhere() ? 1 : std::max<std::size_t>(16, n * n / 2 / kMostSteps);
    for (std::size_t boundary = 0; boundary < n; boundary += stride) {
      start.put(stage.memory());
      TracedChild child([&] { GetParam().run(stage); });
      for (std::size_t steps = 0; steps < boundary && child.step(); ++steps) continue;
      child.kill();
      ++tally_.kills;
      Complaints complaints;
      if (GetParam().is_repeatable && !seen_.contains(PoolImage(stage.memory()).digest()))
        complaints.push_back("a kill left an image that stepping did not show");
      for (std::string& complaint : autopsy.examine(stage.memory()))
        complaints.push_back(std::move(complaint));
      tally_.add(boundary, complaints);
    }
  }

  SharedValue<bool> has_done_it_;
  Tally tally_;
  Complaints complaints_;
  std::unordered_set<std::size_t> seen_;
};

TEST_P(EveryInstruction, MayBeTheLastBeforeAKill) {
  Stage stage(GetParam().with);
  GetParam().prepare(stage);
  const PoolImage start(stage.memory());
  const Autopsy autopsy(stage, GetParam());
  step_through(stage, autopsy);
  kill_at_sample(stage, autopsy, start);
  print(GetParam().name, tally_);
  EXPECT_TRUE(*has_done_it_) << "the operation did not do what its name says";
  EXPECT_GT(tally_.boundaries, 10u);
  EXPECT_EQ(tally_.violations, 0u) << tally_.first;
}

/// The steward dies while it formats an empty pool. No process can attach before the format is
/// complete, and the next steward formats the pool again.
TEST(EveryInstructionOfFormatting, MayBeTheLastBeforeAKill) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden here";
  constexpr std::size_t kWritten = 3;  // control, metadata, tokens: formatting writes nothing else
  const PoolGeometry geometry = small_geometry(16, 8);
  const PoolFds fds = create_pool_objects(geometry).value();
  const PoolFds copies = create_pool_objects(geometry).value();
  const auto read_all = [](int fd) {
    std::string bytes(std::size_t(lseek(fd, 0, SEEK_END)), 0);
    KV_CHECK(pread(fd, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()));
    return bytes;
  };
  // The memory does not start as zero, so that the progress of memset shows in the images.
  for (std::size_t i = 0; i < kWritten; ++i) {
    const std::string junk(read_all(fds[i].get()).size() - sizeof(ControlBlock) * (i == 0), 0x77);
    KV_CHECK(pwrite(fds[i].get(), junk.data(), junk.size(), i == 0 ? sizeof(ControlBlock) : 0) > 0);
  }

  Tally tally;
  std::array<std::string, kWritten> image;
  Complaints complaints;
  TracedChild child([&] { KV_CHECK(PoolMemory::format(fds, geometry).has_value()); });
  do {
    const std::array now{read_all(fds[0].get()), read_all(fds[1].get()), read_all(fds[2].get())};
    if (now != image) {
      image = now;
      ++tally.images;
      for (std::size_t i = 0; i < kWritten; ++i)
        KV_CHECK(pwrite(copies[i].get(), now[i].data(), now[i].size(), 0) > 0);
      complaints.clear();
      const bool is_complete =
          reinterpret_cast<const ControlBlock*>(now[0].data())->formatted.load() == kFormatted;
      if (PoolMemory::attach(copies, Access::read_write).has_value() != is_complete)
        complaints.push_back("half a pool can be attached to, or a whole one cannot");
      if (!PoolMemory::format(copies, geometry).has_value())
        complaints.push_back("cannot be formatted again");
      if (const auto memory = PoolMemory::attach(copies, Access::read_write))
        for (std::string& complaint : examine_at_rest(*memory, 0))
          complaints.push_back(std::move(complaint));
      else
        complaints.push_back(memory.error().text);
    }
    tally.add(tally.boundaries, complaints);
    ++tally.boundaries;
  } while (child.step());
  print("format", tally);
  EXPECT_EQ(tally.violations, 0u) << tally.first;
}

INSTANTIATE_TEST_SUITE_P(Pool, EveryInstruction, ::testing::ValuesIn(operations()),
                         [](const auto& operation) { return identifier(operation.param.name); });

}  // namespace
}  // namespace kvhive::testing
