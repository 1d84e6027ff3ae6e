#include "base/expected.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>
#include <set>

namespace kvhive {
namespace {

using ::testing::HasSubstr;

TEST(Errc, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= int(Errc::os_error); ++code) {
    const std::string_view name = to_string(Errc(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(to_string(Errc::pool_exhausted), "pool_exhausted");
  EXPECT_EQ(to_string(Errc(200)), "unknown");
}

TEST(Expected, ForwardErrorKeepsCodeAndText) {
  Expected<int> number = failure(Errc::not_found, "no such number");
  const Expected<std::string> word = forward_error(number);
  ASSERT_FALSE(word.has_value());
  EXPECT_EQ(word.error().code, Errc::not_found);
  EXPECT_EQ(word.error().text, "no such number");
}

TEST(OsFailure, SaysWhatFailedAndWhy) {
  errno = ENOENT;
  const Expected<void> failed = os_failure("open /nowhere");
  EXPECT_EQ(failed.error().code, Errc::os_error);
  EXPECT_EQ(failed.error().text, "open /nowhere: No such file or directory");
}

TEST(OsFailure, NamesTheLimitItsValueAndTheRemedy) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  errno = EMFILE;
  EXPECT_THAT(os_failure("open").value().text,
              HasSubstr(std::to_string(limit.rlim_cur) + " file descriptors (ulimit -n)"));
  errno = ETOOMANYREFS;  // what a process without root's capabilities gets from sendmsg()
  EXPECT_THAT(os_failure("send").value().text, HasSubstr("(ulimit -n): raise the limit"));
  errno = ENFILE;
  EXPECT_THAT(os_failure("open").value().text, HasSubstr("/proc/sys/fs/file-max"));
}

}  // namespace
}  // namespace kvhive
