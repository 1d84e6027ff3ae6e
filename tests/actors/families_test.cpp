// Every model family in an engine's ring: whatever the cache does, greedy tokens are those of the
// sequence alone. The models are small and random (tests/models/golden), with all their kinds of
// attention in cache groups of their own.

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>

#include "actors/transformer_runner.hpp"
#include "models/layer_groups.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/actors/plain_ring.hpp"
#include "tests/models/golden.hpp"
#include "tests/support/embeddings.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kBlockSize = 4;
constexpr std::uint32_t kMostTokens = 18;

struct Member {
  const char* model;
  Dtype kv = Dtype::bf16;
};

/// Named in gtest's output by model and KV.
std::string name_of(const Member& member) {
  return std::string(member.model) + (member.kv == Dtype::bf16 ? "" : "_fp8");
}
void PrintTo(const Member& member, std::ostream* out) { *out << name_of(member); }

class Family : public ::testing::TestWithParam<Member> {
 protected:
  struct Pool {
    std::uint32_t device_blocks;  ///< for each cache group
    std::uint32_t host_blocks = 0;
  };
  struct Way {
    Pool pool{300};
    bool prefix_caching = true;
    PreemptionMode preemption = PreemptionMode::recompute;
    std::uint32_t step_tokens = 512;
    std::uint32_t at_once = 16;
    std::uint32_t drafts = 0;
  };
  using Tokens = std::vector<std::vector<TokenId>>;

  PoolMemory make_pool(const Pool& pool) const {
    PoolGeometry geometry;
    geometry.models[0].groups = groups_.groups;
    geometry.device_blocks = pool.device_blocks * geometry.models[0].groups.count + 1;
    geometry.host_blocks = pool.host_blocks * geometry.models[0].groups.count;
    geometry.models[0].tokens_per_block = kBlockSize;
    geometry.models[0].kv = fastest_kv_layout(config_, groups_, kBlockSize, GetParam().kv);
    return private_pool(geometry);
  }

  std::unique_ptr<PlainRing> ring(const PoolMemory& memory, const Way& way,
                                  std::uint32_t slot = 0) const {
    RingConfig config;
    config.scheduler.max_num_seqs = config.block_manager.max_num_seqs = way.at_once;
    config.scheduler.max_num_batched_tokens = way.step_tokens;
    config.block_manager.max_num_batched_tokens = way.step_tokens;
    config.scheduler.max_model_len = 100;
    config.scheduler.vocab_size = static_cast<std::uint32_t>(config_.vocab_size);
    config.block_manager.prefix_caching = way.prefix_caching;
    config.block_manager.preemption = way.preemption;
    config.scheduler.lookup = {.drafts = way.drafts, .longest = 3, .shortest = 1};
    auto model = Transformer::load(path_).value();
    auto made = std::make_unique<PlainRing>(
        memory, ProcessSlot{slot}, config, std::make_unique<SwapperState>(memory),
        std::make_unique<TransformerRunner>(std::move(model), memory.arena(Tier::device),
                                            memory.geometry().models[0].kv),
        EraseOnDevice());
    made->copy_policy().set(1, 1000);  // copies pay
    return made;
  }

  /// Prompts of 5 to 40 tokens; some begin as others do.
  std::vector<std::vector<TokenId>> prompts() const {
    const auto tokens = read_golden(GetParam().model).tokens;
    std::vector<std::vector<TokenId>> prompts;
    for (std::size_t i = 0; i < 8; ++i) {
      std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + std::ptrdiff_t(8 * (i % 3)));
      for (std::size_t t = 0; t < 5 + 4 * i; ++t)
        prompt.push_back(tokens[(7 * i + 3 * t) % tokens.size()]);
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

  struct Answers {
    std::vector<std::shared_ptr<Recording>> of;
    Tokens tokens() const {
      Tokens all;
      for (const auto& recording : of) {
        EXPECT_EQ(recording->reason, FinishReason::length) << recording->error.text;
        all.push_back(recording->tokens);
      }
      return all;
    }
  };
  enum class Prompts : std::uint8_t { tokens, embeddings };
  void submit(PlainRing& ring, const Answers& answers, float temperature = 0,
              const TokenRules& rules = {}, Prompts kind = Prompts::tokens) const {
    GenerationParams params;
    params.max_tokens = kMostTokens;
    params.sampling = {.temperature = temperature, .seed = 5};
    params.ignore_eos = true;
    params.rules = rules;
    const auto asked = prompts();
    for (std::uint32_t i = 0; i < asked.size(); ++i) {
      if (answers.of[i]->is_finished()) continue;
      const auto journal = answers.of[i]->tokens;
      Submission submission{{1, i},
                            asked[i],
                            journal,
                            params,
                            std::make_shared<RecordingSink>(answers.of[i], journal.size())};
      if (kind == Prompts::embeddings) {
        submission.prompt.assign(asked[i].size(), kEmbedded);
        submission.embedded = std::make_shared<EmbeddedPrompt>(
            *EmbeddedPrompt::make(config_.hidden_size, embeddings_of(path_, asked[i])));
      }
      ring.scheduler().submit(std::move(submission));
    }
    ring.scheduler().flush();
  }
  /// Scores each prompt and what was answered to it.
  Answers score(PlainRing& ring, const Answers& answers) const {
    const Answers scores = no_answers();
    auto texts = prompts();
    for (std::uint32_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId>& answer = answers.of[i]->tokens;
      texts[i].insert(texts[i].end(), answer.begin(), answer.end());
      ring.scheduler().submit({{1, i},
                               texts[i],
                               {},
                               {.max_tokens = 18, .prompt_logprobs = 0, .ignore_eos = true},
                               std::make_shared<RecordingSink>(scores.of[i])});
    }
    ring.scheduler().flush();
    while (!ring.is_quiet()) EXPECT_TRUE(ring.advance().value_or(false) || ring.is_quiet());
    return scores;
  }
  Answers no_answers() const {
    Answers answers;
    for (std::size_t i = 0; i < prompts().size(); ++i)
      answers.of.push_back(std::make_shared<Recording>());
    return answers;
  }
  Tokens run(PlainRing& ring, float temperature = 0, const TokenRules& rules = {},
             Prompts kind = Prompts::tokens) const {
    const Answers answers = no_answers();
    submit(ring, answers, temperature, rules, kind);
    while (!ring.is_quiet()) EXPECT_TRUE(ring.advance().value_or(false) || ring.is_quiet());
    return answers.tokens();
  }

  static std::uint64_t counted(const PoolMemory& memory, CounterName name) {
    return memory.control().processes[0].counters[name].load();
  }

  /// The tokens of each prompt alone, nothing cached.
  const Tokens& expected() {
    if (expected_.empty()) {
      const PoolMemory memory = make_pool({300});
      expected_ = run(*ring(memory, {.prefix_caching = false, .at_once = 1}));
    }
    return expected_;
  }

  std::filesystem::path path_ = kGolden / GetParam().model;
  ModelConfig config_ = load_model_config(path_).value();
  LayerGroups groups_ = group_layers(config_);

 private:
  Tokens expected_;
};

TEST_P(Family, CachedOrNotInChunksOfAnySizeTheTokensAreTheSame) {
  for (const std::uint32_t chunk : {16u, 64u, 512u})
    for (const bool is_cached : {false, true}) {
      const PoolMemory memory = make_pool({300});
      const auto engine = ring(memory, {.prefix_caching = is_cached, .step_tokens = chunk});
      EXPECT_EQ(run(*engine), expected()) << chunk;
      EXPECT_EQ(run(*engine), expected()) << chunk << ", again";
      EXPECT_EQ(counted(memory, "hit_blocks") > 20, is_cached);
    }
}

/// Each request goes on from the one before, mostly within a block.
TEST_P(Family, TokensThatAreAskedForOneByOneAreForkedAndTheSame) {
  const PoolMemory memory = make_pool({600});
  const auto engine = ring(memory, {.step_tokens = 64});
  auto texts = prompts();
  Tokens tokens(texts.size());
  for (std::size_t step = 0; step < kMostTokens; ++step) {
    const Answers answers = no_answers();
    for (std::uint32_t i = 0; i < texts.size(); ++i)
      engine->scheduler().submit({{1, i},
                                  texts[i],
                                  {},
                                  {.max_tokens = 1, .ignore_eos = true, .will_be_forked = true},
                                  std::make_shared<RecordingSink>(answers.of[i])});
    engine->scheduler().flush();
    const auto is_finished = [](const auto& recording) { return recording->is_finished(); };
    while (!std::ranges::all_of(answers.of, is_finished)) ASSERT_TRUE(engine->advance().value());
    for (std::size_t i = 0; i < texts.size(); ++i)
      for (auto* list : {&texts[i], &tokens[i]}) list->push_back(answers.of[i]->tokens.at(0));
  }
  EXPECT_EQ(tokens, expected());
  EXPECT_GT(counted(memory, "forked_tokens"), 100u);
  while (!engine->is_quiet()) ASSERT_TRUE(engine->advance().has_value());
}

TEST_P(Family, EmbeddingsOfAPromptsTokensGiveTheSameAnswerAndAreCachedApartFromTokens) {
  for (const std::uint32_t chunk : {16u, 512u}) {
    const PoolMemory memory = make_pool({300});
    const auto engine = ring(memory, {.step_tokens = chunk});
    EXPECT_EQ(run(*engine), expected());
    const std::uint64_t hits = counted(memory, "cached_tokens");
    EXPECT_EQ(run(*engine, 0, {}, Prompts::embeddings), expected()) << chunk;
    const std::uint64_t among_embeddings = counted(memory, "cached_tokens") - hits;
    EXPECT_EQ(run(*engine, 0, {}, Prompts::embeddings), expected()) << chunk << ", again";
    EXPECT_GT(counted(memory, "cached_tokens") - hits - among_embeddings, among_embeddings + 100);
    EXPECT_TRUE(fsck(memory).violations.empty());
  }
}

/// They are computed once more, or copied; and guesses are of the answer's tokens only.
TEST_P(Family, PreemptedEmbeddingsGiveTheSameTokensWithAndWithoutGuesses) {
  for (const PreemptionMode mode : {PreemptionMode::recompute, PreemptionMode::swap})
    for (const std::uint32_t drafts : {0u, 4u}) {
      const PoolMemory memory = make_pool({26, 60});
      const auto engine = ring(memory, {.preemption = mode, .step_tokens = 32, .drafts = drafts});
      EXPECT_EQ(run(*engine, 0, {}, Prompts::embeddings), expected()) << drafts;
      EXPECT_EQ(run(*engine, 0, {}, Prompts::embeddings), expected()) << drafts << ", again";
      EXPECT_GT(counted(memory, "preemptions_swap") + counted(memory, "preemptions_recompute"), 0u);
    }
}

TEST_P(Family, PreemptedSequencesGoOnWithTheSameTokens) {
  for (const PreemptionMode mode : {PreemptionMode::recompute, PreemptionMode::swap}) {
    const PoolMemory memory = make_pool({26, 60});
    const auto engine = ring(memory, {.preemption = mode, .step_tokens = 32});
    EXPECT_EQ(run(*engine), expected());
    EXPECT_EQ(run(*engine), expected());
    const bool is_swap = mode == PreemptionMode::swap;
    const std::uint64_t preempted =
        is_swap ? counted(memory, "preemptions_swap") : counted(memory, "preemptions_recompute");
    EXPECT_GT(preempted, 0u);
    EXPECT_TRUE(fsck(memory).violations.empty());
  }
}

TEST_P(Family, WhatWasDemotedIsFoundAndGivesTheSameTokens) {
  const PoolMemory memory = make_pool({26, 200});
  const auto engine = ring(memory, {.step_tokens = 32, .at_once = 2});
  EXPECT_EQ(run(*engine), expected());
  EXPECT_EQ(run(*engine), expected());
  EXPECT_GT(counted(memory, "demoted_blocks"), 0u);
  EXPECT_GT(counted(memory, "promoted_blocks"), 0u);
}

/// Greedy and sampled, alone and together, cached, preempted and swapped.
TEST_P(Family, GuessingAheadGivesTheSameTokensInFewerSteps) {
  for (const float temperature : {0.0f, 0.9f}) {
    const PoolMemory plain_memory = make_pool({300});
    const auto without = ring(plain_memory, {.at_once = 1});
    const Tokens plain = run(*without, temperature);
    for (const std::uint32_t at_once : {1u, 16u})
      for (const std::uint32_t blocks : {300u, 26u}) {
        const PoolMemory memory = make_pool({blocks, 60});
        const auto engine = ring(memory, {.preemption = PreemptionMode::swap,
                                          .step_tokens = 64,
                                          .at_once = at_once,
                                          .drafts = 4});
        EXPECT_EQ(run(*engine, temperature), plain) << temperature << " " << at_once;
        if (temperature == 0 && at_once == 1) {
          EXPECT_LT(engine->steps(), without->steps());
        }
        EXPECT_EQ(run(*engine, temperature), plain) << "again";
        EXPECT_GT(counted(memory, "draft_tokens"), 20u);
        if (temperature == 0) {
          EXPECT_GT(counted(memory, "accepted_draft_tokens"), 0u);
        }
        EXPECT_TRUE(fsck(memory).violations.empty());
      }
  }
}

/// One token at a time, each by a request of its own, with the penalties worked out here from the
/// likeliest tokens' log-probabilities.
TEST_P(Family, PenaltiesGiveTheTokensThatFollowFromTheLikelihoods) {
  const TokenRules rules{.presence_penalty = 0.75f, .frequency_penalty = 0.5f, .min_tokens = 2};
  const PoolMemory memory = make_pool({300});
  const auto engine = ring(memory, {.at_once = 1});
  const Tokens answers = run(*engine, 0, rules);
  EXPECT_NE(answers, expected()) << "the penalties change nothing";
  const auto asked = prompts();
  int known = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::vector<TokenId> sequence = asked[i];
    std::map<TokenId, int> counts;
    for (const TokenId token : answers[i]) {
      const auto next = std::make_shared<Recording>();
      engine->scheduler().submit({{2, 0},
                                  sequence,
                                  {},
                                  {.max_tokens = 1, .logprobs = kMostLogprobs, .ignore_eos = true},
                                  std::make_shared<RecordingSink>(next)});
      while (!next->is_finished()) ASSERT_TRUE(engine->advance().has_value());
      const auto penalised = [&](const Sampled& each) {
        const bool is_early = sequence.size() < asked[i].size() + rules.min_tokens;
        if (each.token == kOracleEos && is_early) return -std::numeric_limits<float>::infinity();
        const auto count = counts.find(each.token);
        return count == counts.end()
                   ? each.logprob
                   : each.logprob - 0.75f - 0.5f * static_cast<float>(count->second);
      };
      const std::vector<Sampled>& top = next->top.front();
      const auto best = std::ranges::max_element(top, {}, penalised);
      // Else a token that is less likely than these may be the best.
      if (penalised(*best) > top.back().logprob) {
        ASSERT_EQ(token, best->token) << i << " " << sequence.size();
        ++known;
      }
      sequence.push_back(token);
      ++counts[token];
    }
  }
  EXPECT_GT(known, 130) << "of 8 answers of 18 tokens";
}

/// In batches, cached, preempted, swapped, with guesses and after a death.
TEST_P(Family, RulesHoldWhateverTheCacheDoes) {
  const TokenRules discouraging{.presence_penalty = 0.5f,
                                .frequency_penalty = 0.25f,
                                .repetition_penalty = 1.3f,
                                .logit_bias = {{3, 2}, {5, -100}}};
  // Tokens come again and again, but not too often: guesses are right, and their counts matter.
  const TokenRules encouraging{.presence_penalty = -2, .frequency_penalty = 0.5f};
  for (const TokenRules& rules : {discouraging, encouraging})
    for (const float temperature : {0.0f, 0.9f}) {
      const PoolMemory plain = make_pool({300});
      const Tokens alone =
          run(*ring(plain, {.prefix_caching = false, .at_once = 1}), temperature, rules);
      for (const PreemptionMode mode : {PreemptionMode::recompute, PreemptionMode::swap})
        for (const std::uint32_t drafts : {0u, 4u}) {
          const PoolMemory memory = make_pool({26, 60});
          const auto engine =
              ring(memory, {.preemption = mode, .step_tokens = 32, .drafts = drafts});
          EXPECT_EQ(run(*engine, temperature, rules), alone);
          EXPECT_EQ(run(*engine, temperature, rules), alone) << "again";
          if (drafts != 0 && temperature == 0 && rules == encouraging) {
            EXPECT_GT(counted(memory, "accepted_draft_tokens"), 20u);
          }
          EXPECT_TRUE(fsck(memory).violations.empty());
        }
      const PoolMemory memory = make_pool({100});
      const Answers answers = no_answers();
      {
        const auto dying = ring(memory, {.step_tokens = 24}, 1);
        submit(*dying, answers, temperature, rules);
        for (int i = 0; i < 30; ++i) ASSERT_TRUE(dying->advance().has_value());
      }
      reap(memory, ProcessSlot{1});
      const auto survivor = ring(memory, {}, 0);
      submit(*survivor, answers, temperature, rules);
      while (!survivor->is_quiet()) ASSERT_TRUE(survivor->advance().has_value());
      EXPECT_EQ(answers.tokens(), alone);
    }
}

/// Bit for bit, in chunks of any size, preempted and swapped.
TEST_P(Family, AnAnswerIsAsLikelyInAScoredPromptAsWhenItWasGenerated) {
  const PoolMemory plain = make_pool({300});
  const auto generating = ring(plain, {.at_once = 1});
  const Answers answers = no_answers();
  submit(*generating, answers);
  while (!generating->is_quiet()) (void)generating->advance();
  for (const PreemptionMode mode : {PreemptionMode::recompute, PreemptionMode::swap})
    for (const std::uint32_t chunk : {16u, 512u}) {
      const PoolMemory memory = make_pool({26, 60});
      const auto engine = ring(memory, {.preemption = mode, .step_tokens = chunk});
      const Answers scores = score(*engine, answers);
      for (std::size_t i = 0; i < answers.of.size(); ++i) {
        const std::vector<float>& generated = answers.of[i]->logprobs;
        const std::vector<PromptToken>& scored = scores.of[i]->prompt;
        ASSERT_EQ(scored.size(), prompts()[i].size() + generated.size());
        for (std::size_t t = 0; t < generated.size(); ++t)
          ASSERT_EQ(scored[prompts()[i].size() + t].logprob, generated[t]) << i << " " << t;
      }
      EXPECT_EQ(counted(memory, "hit_blocks"), 0u);
      const std::string model = GetParam().model;
      const bool has_room = model == "mistral" || model == "gemma3" || model == "llama4";
      const std::uint64_t preempted = mode == PreemptionMode::swap
                                          ? counted(memory, "preemptions_swap")
                                          : counted(memory, "preemptions_recompute");
      EXPECT_EQ(preempted == 0, has_room) << "their windows and chunks need fewer blocks";
    }
}

TEST_P(Family, AnotherEngineGoesOnAfterADeath) {
  for (const int steps : {3, 8, 15, 24}) {
    const PoolMemory memory = make_pool({100});
    const Answers answers = no_answers();
    {
      const auto dying = ring(memory, {.step_tokens = 24}, 1);
      submit(*dying, answers);
      for (int i = 0; i < 2 * steps; ++i) ASSERT_TRUE(dying->advance().has_value());
    }
    reap(memory, ProcessSlot{1});
    const auto survivor = ring(memory, {}, 0);
    submit(*survivor, answers);
    while (!survivor->is_quiet()) ASSERT_TRUE(survivor->advance().has_value());
    EXPECT_EQ(answers.tokens(), expected()) << steps;
    EXPECT_TRUE(fsck(memory).violations.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Family,
                         ::testing::Values(Member{"llama2"}, Member{"llama3"}, Member{"mistral"},
                                           Member{"qwen2"}, Member{"qwen3"}, Member{"gemma2"},
                                           Member{"gemma3"}, Member{"qwen3_moe"}, Member{"yarn"},
                                           Member{"fp8_block"}, Member{"deepseek_v2"},
                                           Member{"deepseek_v2", Dtype::e4m3},
                                           Member{"deepseek_v2_lite"}, Member{"llama4"}),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace kvhive::testing
