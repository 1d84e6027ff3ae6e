#include "config/machine/process_limits.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(ProcessLimits, AProcessWithoutCoreDumpsCannotBeDumped) {
  if (kUnderSanitizer) GTEST_SKIP() << "sanitizers debug their own process";
  ChildProcess child([] {
    forbid_core_dumps();
    if (prctl(PR_GET_DUMPABLE) != 0) _exit(1);
  });
  EXPECT_TRUE(ended_well(child.wait()));
}

TEST(ProcessLimits, AnEngineIsEndedBeforeItsKeeperIfMemoryRunsOut) {
  const auto score = [] {
    int value = -1;
    std::ifstream("/proc/self/oom_score_adj") >> value;
    return value;
  };
  ChildProcess child([&] {
    const int before = score();
    offer_to_oom_killer();
    if (score() != std::max(before, 300)) _exit(1);
  });
  EXPECT_TRUE(ended_well(child.wait()));
}

TEST(ProcessLimits, WithoutLimitsEverythingFits) {
  EXPECT_TRUE(check_descriptors({}, 31).has_value());
  EXPECT_TRUE(check_bytes({}, std::size_t{1} << 50, std::size_t{1} << 50).has_value());
}

TEST(ProcessLimits, EachEngineNeedsTwoDescriptors) {
  ProcessLimits limits;
  for (limits.descriptors = 0; !check_descriptors(limits, 1); ++limits.descriptors) {
  }
  const auto refused = check_descriptors(limits, 2);
  ASSERT_FALSE(refused.has_value());
  const std::string has = std::to_string(limits.descriptors);
  const std::string needs = std::to_string(limits.descriptors + 2);
  EXPECT_THAT(refused.error().text, HasSubstr("(ulimit -n) is " + has));
  EXPECT_THAT(refused.error().text, HasSubstr("engines: 2 needs " + needs));
  limits.descriptors += 2;
  EXPECT_TRUE(check_descriptors(limits, 2).has_value());
}

TEST(ProcessLimits, BytesAreRefusedByTheLimitTheyExceed) {
  ProcessLimits limits;
  limits.address_space = 100 * kMiB;
  limits.file_size = 60 * kMiB;
  EXPECT_TRUE(check_bytes(limits, 100 * kMiB, 60 * kMiB).has_value());
  EXPECT_THAT(check_bytes(limits, 101 * kMiB, kMiB).error().text,
              HasSubstr("(ulimit -v) is 100.00 MiB, an engine maps 101.00 MiB"));
  EXPECT_THAT(check_bytes(limits, 100 * kMiB, 61 * kMiB).error().text,
              HasSubstr("(ulimit -f) is 60.00 MiB, the pool's largest object has 61.00 MiB"));
}

TEST(ProcessLimits, DescriptorsLeftAreCountedFromTheNewest) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd newest{open("/dev/null", O_RDONLY | O_CLOEXEC)};
  EXPECT_EQ(descriptors_left(newest.get()), limit.rlim_cur - static_cast<rlim_t>(newest.get()) - 1);
  EXPECT_EQ(descriptors_left(static_cast<int>(limit.rlim_cur) + 5), 0u);
}

TEST(ProcessLimits, TryThreadsSucceedsForAFewThreads) {
  EXPECT_TRUE(try_threads(0).has_value());
  EXPECT_TRUE(try_threads(12).has_value());
}

/// A limit of address space so many bytes above what this process has.
void leave_address_space(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::size_t>(getpagesize()) + bytes;
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(126);
}

/// False if the system does not grant `count` threads that allocate before the next is started.
bool make_threads_that_allocate(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    try {
      std::promise<std::unique_ptr<std::string>> text;
      auto allocated = text.get_future();
      std::thread([promise = std::move(text)]() mutable {
        promise.set_value(std::make_unique<std::string>(100, 'x'));
        pause();
      }).detach();
      allocated.wait();
    } catch (const std::system_error&) {
      return false;
    }
  }
  return true;
}

TEST(ProcessLimits, WhatTryThreadsHasFoundIsThereForThreadsThatAllocate) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's shadow needs terabytes of address space";
  enum Outcome : int { refused = 3, granted = 4, granted_in_part = 5 };
  constexpr std::size_t kThreads = 6;
  int seen[6] = {};
  for (std::size_t mib = 8; mib <= kThreads * 80; mib += 4) {
    ChildProcess child([mib] {
      leave_address_space(mib * kMiB);
      keep_one_heap();
      if (!try_threads(kThreads)) _exit(refused);
      _exit(make_threads_that_allocate(kThreads) ? granted : granted_in_part);
    });
    const int status = child.wait();
    ASSERT_TRUE(WIFEXITED(status)) << mib;
    ++seen[std::min(WEXITSTATUS(status), 5)];
  }
  EXPECT_GT(seen[refused], 0);
  EXPECT_GT(seen[granted], 0);
  EXPECT_EQ(seen[granted_in_part], 0);
}

}  // namespace
}  // namespace kvhive::testing
