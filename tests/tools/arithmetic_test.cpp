// Whole daemons, computing with each kind of CPU kernels: shared, preempted, after deaths, the
// tokens are the same. Who cannot follow is refused in one line.

#include <gmock/gmock.h>
#include <seccomp.h>
#include <sys/syscall.h>

#include <algorithm>

#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/engine_death.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Arithmetic : public ::testing::TestWithParam<CpuKernels> {
 protected:
  void SetUp() override {
    if (!grants(GetParam())) GTEST_SKIP() << "NOT RUN: " << missing_for(GetParam());
  }
  static std::vector<std::string> flags(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--cpu-kernels", std::string(to_string(GetParam()))});
    return more;
  }
  static std::vector<GenerateRequest> requests() { return overlapping_requests(18, 24, 8); }
  static Tokens at_once(const Daemon& daemon) { return tokens_at_once(daemon, requests()); }
};

TEST_P(Arithmetic, GivesTheSameTokensSharedPreemptedAndAfterDeaths) {
  Tokens expected;
  {
    const Daemon alone(
        flags({"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"}));
    EXPECT_EQ(alone.stat()["computed"], to_string(GetParam()));
    expected = tokens_one_by_one(alone, requests());
  }
  for (const char* mode : {"recompute", "swap"}) {
    SCOPED_TRACE(std::string("a pool that is too small, preemption by ") + mode);
    const Daemon daemon(flags({"--engines", "2", "--num-gpu-blocks-override", "60", "--swap-space",
                               "8M", "--preemption-mode", mode, "--max-model-len", "512",
                               "--max-num-batched-tokens", "64", "--max-num-seqs", "12"}));
    EXPECT_EQ(at_once(daemon), expected);
    EXPECT_GT(daemon.preemptions(), 0u);
    EXPECT_TRUE(daemon.fsck_is_clean());
  }
  SCOPED_TRACE("two engines; then one is killed, then the keeper");
  const Daemon daemon(flags({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
  EXPECT_EQ(at_once(daemon), expected);
  EXPECT_EQ(at_once(daemon), expected);
  EXPECT_GT(daemon.stat()["hit_blocks"].get<int>(), 18);
  EXPECT_EQ(tokens_beside_a_death(daemon, requests()), expected);
  daemon.kill_keeper();
  // A new engine is told by the successor, which knows from the ledger.
  ASSERT_TRUE(kill_and_await_next(daemon, 0));
  std::vector<Client> clients;
  clients.push_back(daemon.connect(0));
  EXPECT_EQ(tokens_of(generate_all(clients, requests())), expected);
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }));
}

INSTANTIATE_TEST_SUITE_P(CpuKernels, Arithmetic, ::testing::ValuesIn(kAllCpuKernels),
                         [](const auto& each) {
                           std::string name(to_string(each.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::vector<std::string> guest_flags(const Daemon& daemon, const char* kernels) {
  return {"--model",   kDemoModel, "--socket",      daemon.socket(),
          "--threads", "1",        "--cpu-kernels", kernels};
}

TEST(ArithmeticOfAPool, RefusesAnEngineThatComputesOtherwiseInOneLine) {
  if (!grants(CpuKernels::avx2)) GTEST_SKIP() << "NOT RUN: " << missing_for(CpuKernels::avx2);
  const Daemon daemon({"--kv-cache-memory-bytes", "16M", "--cpu-kernels", "avx2"});
  const CommandResult guest = run("kvhive-engine", guest_flags(daemon, "sse4"));
  EXPECT_EQ(guest.exit_code, 1);
  EXPECT_EQ(std::count(guest.err.begin(), guest.err.end(), '\n'), 1) << guest.err;
  EXPECT_THAT(guest.err,
              AllOf(StartsWith("kvhive-engine: "), HasSubstr("computed with --cpu-kernels avx2"),
                    HasSubstr("this engine computes with sse4")));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// In a forked child, before it executes: the kernel permits it no tiles.
void refuse_tiles() {
  constexpr int kRequestPermission = 0x1023;
  const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  const scmp_arg_cmp request = SCMP_A0(SCMP_CMP_EQ, kRequestPermission, 0);
  if (seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(arch_prctl), 1, &request) !=
          0 ||
      seccomp_load(filter) != 0)
    _exit(126);
}

TEST(ArithmeticOfAPool, IsRefusedInOneLineWhereItIsNotGranted) {
  const TempDirectory directory;
  const CommandResult daemon =
      run("kvhived",
          {"--model", kDemoModel, "--socket", (directory.path() / "socket").string(), "--log-level",
           "error", "--cpu-kernels", "amx"},
          refuse_tiles);
  EXPECT_NE(daemon.exit_code, 0);
  EXPECT_EQ(std::count(daemon.err.begin(), daemon.err.end(), '\n'), 1) << daemon.err;
  EXPECT_THAT(daemon.err, AllOf(HasSubstr("cpu-kernels 'amx': "), HasSubstr("or auto")));
}

TEST(ArithmeticOfAPool, IsTheNextBestWhereTilesAreNotPermitted) {
  if (!grants(CpuKernels::amx)) GTEST_SKIP() << "NOT RUN: " << missing_for(CpuKernels::amx);
  const Daemon daemon({"--kv-cache-memory-bytes", "16M"}, refuse_tiles);
  EXPECT_EQ(daemon.stat()["computed"], "avx512-bf16");
  const CommandResult doctor = run("kvhive", {"doctor"}, refuse_tiles);
  EXPECT_THAT(doctor.out, HasSubstr("the kernel does not permit this process to use AMX tiles"));
  const CommandResult guest = run("kvhive-engine", guest_flags(daemon, "auto"));
  EXPECT_THAT(guest.err, HasSubstr("computed with --cpu-kernels avx512-bf16"));
}

}  // namespace
}  // namespace kvhive::testing
