#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesWhatItOwns) {
  const int raw = dup(0);
  { const UniqueFd fd(raw); }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, MovesAndReleases) {
  UniqueFd first(dup(0));
  const int raw = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): the test checks this
  UniqueFd third(dup(0));
  const int overwritten = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(overwritten));
  EXPECT_EQ(third.release(), raw);
  EXPECT_TRUE(is_open(raw));
  close(raw);
}

}  // namespace
}  // namespace kvhive::testing
