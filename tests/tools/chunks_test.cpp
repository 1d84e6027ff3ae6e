// Whole daemons with a model whose layers attend to their own chunk, all but some (Llama 4).

#include <gmock/gmock.h>

#include "tests/tools/golden_model.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

TEST(Chunks, OfLlama4GiveTheSameTokensEverywhere) {
  expect_same_tokens_everywhere("llama4", {.small_pool = 60});
}

TEST(Chunks, AreShownByLayout) {
  const GoldenModel model("llama4");
  const CommandResult layout = run(
      "kvhive",
      {"layout", "--model", model.path(), "--kv-cache-memory-bytes", "4M", "--swap-space", "0"});
  EXPECT_THAT(layout.out, HasSubstr("2 of chunks of 16, 1 of full attention"));
}

}  // namespace
}  // namespace kvhive::testing
