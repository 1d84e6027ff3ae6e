// Guessing ahead (--num-speculative-tokens) changes how long an answer takes, and nothing else.

#include "kernels/cpu/instructions/cpu_features.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

/// Answers of a text that repeats itself; every second is sampled.
std::vector<GenerateRequest> repetitive_requests() {
  std::vector<GenerateRequest> all = overlapping_requests(8, 60, 20);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].prompt += all[i].prompt.substr(0, 200);
    if (i % 2 == 0) continue;
    all[i].temperature = 0.7f;
    all[i].seed = 11 + i;
  }
  return all;
}

std::vector<std::string> with_guesses(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--num-speculative-tokens", "4", "--prompt-lookup-min", "1"});
  return more;
}

const Tokens& without_guesses() {
  static const Tokens tokens = [] {
    const Daemon daemon;
    return tokens_one_by_one(daemon, repetitive_requests());
  }();
  return tokens;
}

TEST(Speculation, AnswersAreTheSameInFewerSteps) {
  const Daemon daemon(with_guesses({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
  EXPECT_EQ(tokens_one_by_one(daemon, repetitive_requests()), without_guesses());
  EXPECT_EQ(tokens_at_once(daemon, repetitive_requests()), without_guesses());
  EXPECT_TRUE(daemon.fsck_is_clean());
  if (!cpu_features().avx512_bf16)
    GTEST_SKIP()
        << "NOT RUN: that steps are fewer; on this CPU a row costs too much for guesses to pay";
  const PoolMemory pool = daemon.pool();
  EXPECT_GT(counted(pool, "draft_tokens"), 100u);
  EXPECT_GT(counted(pool, "accepted_draft_tokens"), 50u);
}

TEST(Speculation, AnEngineMayDieWithGuessesUnderWay) {
  const Daemon daemon(with_guesses({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
  EXPECT_EQ(beside_a_death(daemon, [&] { return tokens_at_once(daemon, repetitive_requests()); }),
            without_guesses());
  EXPECT_GT(counted(daemon.pool(), "draft_tokens"), 0u);
}

TEST(Speculation, PreemptedAndSwappedAnswersAreTheSame) {
  const Daemon daemon(with_guesses({"--engines", "1", "--kv-cache-memory-bytes", "2M",
                                    "--swap-space", "8M", "--preemption-mode", "swap"}));
  EXPECT_EQ(tokens_at_once(daemon, repetitive_requests(), 1), without_guesses());
  EXPECT_GT(daemon.preemptions(), 0u);
  EXPECT_GT(counted(daemon.pool(), "draft_tokens"), 0u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
