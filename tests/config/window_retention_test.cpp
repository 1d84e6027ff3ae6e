// Which blocks of a sliding window stay in the prefix cache.

#include "config/window_retention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/cache_groups.hpp"

namespace kvhive {
namespace {

using testing::chunks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kFull;
using testing::window;

constexpr std::size_t kSize = 4;

/// Of the first 12 blocks those that are kept, with a window that needs 2 blocks.
std::vector<std::size_t> kept(const WindowRetention& retention, const ResumePoints& points,
                              const CacheGroup& group = window(8)) {
  std::vector<std::size_t> blocks;
  for (std::size_t block = 0; block < 12; ++block)
    if (is_retained(retention, group, block, points, kSize)) blocks.push_back(block);
  return blocks;
}

// -- vLLM: test_swa_reachable_block_mask..., test_pure_swa_retention...
// -----------------------------------------------------------------------

TEST(WindowRetention, DenseKeepsAll) { EXPECT_EQ(kept({}, {.prompt_tokens = 30}).size(), 12u); }

TEST(WindowRetention, TheLatestOnlyIsWhereTheSamePromptGoesOn) {
  EXPECT_THAT(kept({0}, {.prompt_tokens = 30}), ElementsAre(5, 6));
  EXPECT_THAT(kept({0}, {.prompt_tokens = 32}), ElementsAre(5, 6))
      << "the last token is computed again, and so is its block";
  EXPECT_THAT(kept({0}, {.prompt_tokens = 33}), ElementsAre(6, 7));
  EXPECT_THAT(kept({0}, {.prompt_tokens = 5}), ElementsAre(0)) << "a prompt within the window";
  EXPECT_THAT(kept({0}, {.prompt_tokens = 4}), IsEmpty());
  EXPECT_THAT(kept({0}, {}), IsEmpty());
}

TEST(WindowRetention, AJunctionIsKeptBesides) {
  EXPECT_THAT(kept({0}, {.prompt_tokens = 41, .junction = 16}), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(kept({0}, {.prompt_tokens = 18, .junction = 16}), ElementsAre(2, 3));
}

TEST(WindowRetention, AnIntervalKeepsAWindowBeforeEachOfItsMultiples) {
  EXPECT_THAT(kept({16}, {.prompt_tokens = 22}), ElementsAre(2, 3, 4, 6, 7, 10, 11));
  EXPECT_EQ(kept({8}, {.prompt_tokens = 22}).size(), 12u) << "a window is as long as the interval";
}

TEST(WindowRetention, OtherGroupsKeepAll) {
  EXPECT_EQ(kept({0}, {}, kFull).size(), 12u);
  EXPECT_EQ(kept({0}, {}, chunks(8)).size(), 12u);
}

// -- text -----------------------------------------------------------------------------------------

TEST(WindowRetention, IsReadAsItIsWritten) {
  for (const char* text : {"dense", "0", "4096"})
    EXPECT_EQ(to_string(parse_window_retention(text).value()), text);
  for (const char* text : {"", "none", "-1", "4096x", "5000000000"}) {
    const auto parsed = parse_window_retention(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_THAT(parsed.error().text, HasSubstr("dense"));
  }
}

}  // namespace
}  // namespace kvhive
