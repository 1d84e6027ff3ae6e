// Whole daemons with a model whose layers attend to their own chunk, all but some (Llama 4).

#include <gmock/gmock.h>

#include <fstream>

#include "base/json_file.hpp"
#include "tests/tools/golden_model.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

TEST(Chunks, OfLlama4GiveTheSameTokensEverywhere) {
  expect_same_tokens_everywhere("llama4", {.small_pool = 60});
}

TEST(Chunks, ExpertsThatNoMachineHasRoomForAreRefusedBeforeTheyAreCopied) {
  const GoldenModel model("llama4");
  const std::filesystem::path file = std::filesystem::path(model.path()) / "config.json";
  Json config = read_json_object(file).value();
  config.update({{"num_local_experts", 4096}, {"intermediate_size", 1 << 20}});
  std::ofstream(file) << config.dump();
  const TempDirectory directory;
  const CommandResult refused =
      run("kvhived", {"--model", model.path(), "--socket", (directory.path() / "s").string(),
                      "--kv-cache-memory-bytes", "4M"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(
      refused.err,
      HasSubstr("copies of its weights (packed experts, scales of quantized ones) takes 1.50 TiB"));
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
