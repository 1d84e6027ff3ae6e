#include "tools/keeper/channels/silent_engines.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SilentEngines, IsSaidOnceAndOnceAMinuteWhileItLasts) {
  SilentEngines engines;
  const SilentEngines::Time start{seconds(1000)};
  int said = 0;
  for (milliseconds after{0}; after < seconds(150); after += milliseconds(1100))
    said += engines.add(7, start + after) ? 1 : 0;
  EXPECT_EQ(said, 3) << "at 0, 60 and 120 s";
  EXPECT_TRUE(engines.add(8, start)) << "each engine is named";
}

TEST(SilentEngines, TheEndIsSaidOnceAndItMayBeginAgain) {
  SilentEngines engines;
  const SilentEngines::Time start{seconds(1000)};
  EXPECT_FALSE(engines.remove(7)) << "it has always answered";
  ASSERT_TRUE(engines.add(7, start));
  EXPECT_TRUE(engines.remove(7));
  EXPECT_FALSE(engines.remove(7));
  EXPECT_TRUE(engines.add(7, start + seconds(1)));
}

}  // namespace
}  // namespace kvhive::testing
