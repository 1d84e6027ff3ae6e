#include "tools/serve/openai/error.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace kvhive {
namespace {

std::string header(const HttpAnswer& answer, const std::string& name) {
  for (const auto& [key, value] : answer.headers)
    if (key == name) return value;
  return "";
}

TEST(ApiErrors, WhoIsRefusedTogetherIsNotSentBackTogether) {
  std::set<long> times;
  for (int i = 0; i < 100; ++i) {
    const HttpAnswer answer = to_answer(ApiError{503, "full", {}, std::chrono::milliseconds(2000)});
    const long ms = std::stol(header(answer, "retry-after-ms"));
    EXPECT_GE(ms, 2000);
    EXPECT_LE(ms, 3000);
    EXPECT_EQ(std::stol(header(answer, "Retry-After")), (ms + 999) / 1000);
    times.insert(ms);
  }
  EXPECT_GT(times.size(), 50u);
}

TEST(ApiErrors, OnlyWhatMayWorkLaterSaysWhen) {
  EXPECT_EQ(header(to_answer(ApiError{400, "wrong", "n", {}}), "Retry-After"), "");
  EXPECT_EQ(header(to_answer(ApiError{503, "none", {}, {}}), "Retry-After"), "1");
}

}  // namespace
}  // namespace kvhive
