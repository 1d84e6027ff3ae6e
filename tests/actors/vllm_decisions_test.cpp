// Scheduler and block manager decide as vLLM's did, step by step, about recorded streams of
// requests. vllm.jsonl is written by `make beside-vllm RECORD=1`, which also runs longer streams
// and shows where two decisions differ.

#include <gtest/gtest.h>

#include <fstream>

#include "base/check.hpp"
#include "tests/beside/decisions.hpp"

namespace kvhive::testing {
namespace {

using nlohmann::json;

/// As vllm_scheduler.py computes it.
std::string digest(const json& decision) {
  std::uint64_t number = 0xcbf29ce484222325;
  for (const char byte : decision.dump())
    number = (number ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  char text[17];
  std::snprintf(text, sizeof text, "%016lx", number);
  return text;
}

/// Of each stream, its configuration and its steps.
std::vector<std::vector<json>> recorded() {
  std::ifstream file(KVHIVE_VLLM_STREAMS);
  std::vector<std::vector<json>> streams;
  for (std::string line; std::getline(file, line);) {
    json parsed = json::parse(line);
    if (parsed.contains("groups")) streams.emplace_back();
    streams.back().push_back(std::move(parsed));
  }
  return streams;
}

TEST(VllmDecisions, AreOurs) {
  const auto streams = recorded();
  ASSERT_GE(streams.size(), 15u);
  std::size_t steps = 0;
  for (const std::vector<json>& stream : streams) {
    SCOPED_TRACE(stream[0].dump());
    std::size_t step = 0;
    decide(stream[0], std::span(stream).subspan(1), [&](const json& decision) {
      if (::testing::Test::HasFailure()) return;
      ASSERT_LT(++step, stream.size());
      EXPECT_EQ(digest(decision), stream[step]["told"]) << "step " << step << ": " << decision;
    });
    ASSERT_EQ(step + 1, stream.size());
    steps += step;
  }
  EXPECT_GT(steps, 2'000u);
}

}  // namespace
}  // namespace kvhive::testing
