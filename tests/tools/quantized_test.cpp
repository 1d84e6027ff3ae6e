// Whole daemons with models whose weights are codes in the file, which all engines read in place:
// shared, preempted, swapped, after a death, the tokens are the same.

#include "tests/tools/golden_model.hpp"

namespace kvhive::testing {
namespace {

class Quantized : public ::testing::TestWithParam<const char*> {};

TEST_P(Quantized, GivesTheSameTokensEverywhere) {
  expect_same_tokens_everywhere(GetParam(), {.small_pool = 24});
}

INSTANTIATE_TEST_SUITE_P(Models, Quantized,
                         ::testing::Values("awq", "gptq_act_order", "w4a16", "w8a8"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvhive::testing
