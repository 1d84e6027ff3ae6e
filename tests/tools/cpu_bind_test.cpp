// Which processors real engines run on.

#include <gmock/gmock.h>
#include <sched.h>

#include <fstream>

#include "config/cpu_bind.hpp"
#include "config/machine/machine_memory.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/other_programs.hpp"
#include "tests/tools/start_attempt.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// None = it has ended.
ProcessorList processors_of(pid_t thread) {
  cpu_set_t set;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return {};
  ProcessorList list;
  for (std::uint32_t number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(number, &set)) list.push_back(number);
  return list;
}

/// Every thread of it: those of actors and of OpenMP, too.
void expect_bound(pid_t process, const ProcessorList& processors) {
  namespace fs = std::filesystem;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(process) + "/task"))
    EXPECT_THAT(processors_of(std::stoi(thread.path().filename())), AnyOf(processors, IsEmpty()))
        << thread.path();
  EXPECT_EQ(processors_of(process), processors);
}

/// Of this process: the first and the last, which may be the same.
ProcessorList ends() {
  const ProcessorList mine = processors_of(0);
  return {mine.front(), mine.back()};
}

TEST(CpuBindings, HoldThroughDeathsOfEnginesAndKeeper) {
  const ProcessorList all = processors_of(0);
  const std::string first = std::to_string(ends()[0]), last = std::to_string(ends()[1]);
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "8M", "--threads", "0",
                       "--cpu-bind", first + "|" + last});
  expect_bound(daemon.pid_of(0), {ends()[0]});
  expect_bound(daemon.pid_of(1), {ends()[1]});
  EXPECT_EQ(processors_of(daemon.keeper()), all);
  const Json status = daemon.status();
  EXPECT_EQ(status["engines"][1]["processors"], last);
  EXPECT_EQ(status["engines"][1]["threads"], 1) << "one for each core of its list";

  daemon.kill_keeper();
  EXPECT_EQ(daemon.status()["engines"][1]["processors"], last);
  const pid_t before = daemon.pid_of(1);
  ::kill(before, SIGKILL);
  ASSERT_TRUE(eventually(
      [&] {
        const Json engine = daemon.status()["engines"][1];
        return engine["pid"] != before && engine["state"] == "serving";
      },
      kHang));
  expect_bound(daemon.pid_of(1), {ends()[1]});

  ASSERT_EQ(daemon.cli({"engine", "add"}).exit_code, 0);
  expect_bound(daemon.pid_of(2), all);
  EXPECT_EQ(daemon.status()["engines"][2]["processors"], "") << "it has none of its own";
}

TEST(CpuBindings, OfThreadsThatAnOperatorAsksForThereAreAsMany) {
  const Daemon daemon(
      {"--kv-cache-memory-bytes", "8M", "--threads", "3", "--cpu-bind", std::to_string(ends()[1])});
  EXPECT_EQ(daemon.status()["engines"][0]["threads"], 3);
  expect_bound(daemon.pid_of(0), {ends()[1]});
}

/// A step's memory grows with threads, so whoever asks how much a model takes has as many as an
/// engine will have, not one for each processor of the machine.
TEST(CpuBindings, AModelsMemoryIsMeasuredWithTheThreadsOfAnEngine) {
  namespace fs = std::filesystem;
  const TempDirectory directory;
  copy_programs(directory.path());
  const fs::path engine = directory.path() / "kvhive-engine", asked = directory.path() / "asked";
  fs::rename(engine, directory.path() / "engine");
  std::ofstream(engine) << "#!/bin/sh\n"
                        << "case \"$*\" in *--describe*) echo \"$OMP_NUM_THREADS\" >>" << asked
                        << ";; esac\nexec " << directory.path() / "engine"
                        << " \"$@\"\n";
  fs::permissions(engine, fs::perms::owner_all);
  const StartedFrom started(directory.path());
  // A GiB: from the model's memory, which is asked for, follows the pool's.
  const std::string share =
      std::to_string(double(1 << 30) / static_cast<double>(machine_memory().total));
  const Daemon daemon({"--engines", "2", "--threads", "0", "--gpu-memory-utilization", share});
  const Json threads = daemon.status()["engines"][0]["threads"];
  std::vector<std::string> told;
  std::ifstream lines(asked);
  for (std::string line; std::getline(lines, line);) told.push_back(line);
  EXPECT_THAT(told, AllOf(Not(IsEmpty()), Each(threads.dump())));
}

/// In a container with fewer processors than the machine, those are the ones there are.
TEST(CpuBindings, AProcessorThatIsNotGrantedIsRefused) {
  const auto on_the_first = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(ends()[0], &set);
    sched_setaffinity(0, sizeof set, &set);
  };
  const StartAttempt refused({"--cpu-bind", "8000"}, on_the_first);
  EXPECT_FALSE(refused.is_ready());
  EXPECT_THAT(refused.words(), HasSubstr("cpu-bind: processor 8000 of engine 0's list is none that "
                                         "kvhived may run on; those are " +
                                         std::to_string(ends()[0])));
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "8M", "--threads", "0"},
                      on_the_first);
  EXPECT_EQ(daemon.status()["engines"][0]["threads"], 1);
}

TEST(CpuBindings, AnEngineStartedByHandTakesItsOwn) {
  const std::string last = std::to_string(ends()[1]);
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  const pid_t guest = spawn(program("kvhive-engine"), {"--model", kDemoModel, "--socket",
                                                       daemon.socket(), "--cpu-bind", last});
  ASSERT_TRUE(eventually([&] { return daemon.status()["engines"].size() == 2; }, kHang));
  expect_bound(guest, {ends()[1]});
  ::kill(guest, SIGKILL);
  waitpid(guest, nullptr, 0);
}

}  // namespace
}  // namespace kvhive::testing
