// The model in models/demo, which the documentation and the daemon tests use. Skipped if the folder
// does not have it.

#include <gtest/gtest.h>

#include "models/sampling/sampler.hpp"
#include "models/text/detokenizer.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "models/transformer.hpp"
#include "tests/models/paged_runner.hpp"

namespace kvhive {
namespace {

const std::filesystem::path kDemo = KVHIVE_DEMO_DIR;

class DemoModel : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"})
      if (!std::filesystem::exists(kDemo / file)) GTEST_SKIP() << (kDemo / file) << " is missing";
  }
};

TEST_F(DemoModel, TokenizerRoundTripsAndStreams) {
  const auto tokenizer = load_tokenizer(kDemo).value();
  for (const std::string text :
       {"", "In the beginning God created the heaven and the earth.", "  two  spaces\n\n\r\n\tend ",
        "I'LL pay 123456 €", "漢字 🙂 e\u0301 ñ\u00a0x", "<|not a token|>"}) {
    const auto tokens = tokenizer.encode(text, AddSpecial::yes).value();
    ASSERT_FALSE(tokens.empty());
    EXPECT_TRUE(tokenizer.is_special(tokens.front()));
    EXPECT_EQ(decode(tokenizer, tokens), text);
    Detokenizer detokenizer(tokenizer);
    std::string streamed;
    for (const TokenId token : tokens) streamed += detokenizer.push(token);
    EXPECT_EQ(streamed + detokenizer.finish(), text);
  }
}

struct Answer {
  const char* prompt;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> greedy_ids;
};

// From `models/demo/train.py --expected` (PyTorch, float32). Only as far as the best logit leads by
// 0.1 or more: rounding activations to bf16 moves logits by less than 0.01.
TEST_F(DemoModel, GeneratesTheTokensOfItsTrainingProgram) {
  const Answer answers[] = {
      {"In the beginning", {2046, 1904, 258, 1803, 1248}, {268, 258, 1043, 268}},
      {"And Jesus answered and said unto them,",
       {2046, 416, 632, 882, 267, 392, 321, 339, 11},
       {1136, 336, 357, 296, 401}},
  };
  const auto tokenizer = load_tokenizer(kDemo).value();
  auto model = Transformer::load(kDemo).value();
  ASSERT_LE(tokenizer.vocab_size(), model.config().vocab_size);
  PagedRunner runner(model, Dtype::bf16, 16, 8, 1);
  for (int sequence = 0; sequence < 2; ++sequence) {
    const auto& [prompt, prompt_ids, greedy_ids] = answers[sequence];
    auto tokens = tokenizer.encode(prompt, AddSpecial::yes).value();
    EXPECT_EQ(tokens, prompt_ids);
    std::vector<TokenId> answer;
    while (answer.size() < greedy_ids.size()) {
      const auto logits = runner.step({{sequence, tokens}}).front();
      const auto last = std::span(logits).last(model.config().vocab_size);
      answer.push_back(sample(last, {}, 0).token);
      tokens = {answer.back()};
    }
    EXPECT_EQ(answer, greedy_ids) << decode(tokenizer, answer);
  }
}

}  // namespace
}  // namespace kvhive
