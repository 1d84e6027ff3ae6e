// Prompts as embeddings between real processes: engines share what equal rows computed, and an
// engine's death costs no answer.

#include <gmock/gmock.h>

#include "models/text/tokenizer_parser.hpp"
#include "tests/support/embeddings.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kHidden = 256;  ///< of the demo model

/// The same prompt, by the rows of its tokens.
GenerateRequest embedded(GenerateRequest request) {
  static const Tokenizer tokenizer = *load_tokenizer(KVHIVE_DEMO_DIR);
  const auto tokens = tokenizer.encode(request.prompt, AddSpecial::yes).value();
  request.prompt.clear();
  request.prompt_embeds = embeddings_of(KVHIVE_DEMO_DIR, tokens);
  request.embedding_width = kHidden;
  return request;
}

std::vector<GenerateRequest> embedded(std::vector<GenerateRequest> requests) {
  for (GenerateRequest& request : requests) request = embedded(std::move(request));
  return requests;
}

std::uint32_t most_cached(const Progress& result) { return (result.prompt_tokens - 1) / 16 * 16; }

TEST(Embeddings, EnginesShareEqualRowsAndAnswerAsForTheTokens) {
  const Daemon daemon;
  const GenerateRequest tokens = request_of(passage(0, 1'500), 12);
  const GenerateRequest rows = embedded(tokens);
  const Progress expected = *daemon.connect(0).generate(tokens);
  const Progress first = *daemon.connect(0).generate(rows);
  ASSERT_EQ(first.reason, Finish::length) << first.error.text;
  EXPECT_EQ(ids(first), ids(expected));
  EXPECT_EQ(first.prompt_tokens, expected.prompt_tokens);
  EXPECT_EQ(first.cached_tokens, 0u) << "what tokens have computed is not theirs";
  const Progress second = *daemon.connect(1).generate(rows);
  EXPECT_EQ(ids(second), ids(expected));
  EXPECT_EQ(second.cached_tokens, most_cached(second));
  // One bit of the third block: the first two are found.
  GenerateRequest other = rows;
  float& value = other.prompt_embeds[40 * kHidden + 7];
  value = std::nextafter(value, 2.0f);
  EXPECT_EQ(daemon.connect(1).generate(other)->cached_tokens, 32u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Embeddings, AnEngineMayDieWhileItServesThem) {
  const auto requests = overlapping_requests(8, 60, 20);
  const Daemon daemon;
  const Tokens expected = tokens_one_by_one(daemon, requests);
  EXPECT_EQ(beside_a_death(daemon, [&] { return tokens_at_once(daemon, embedded(requests)); }),
            expected);
}

TEST(Embeddings, AQuestionFindsTheirRoom) {
  const Daemon daemon;
  const GenerateRequest rows = embedded(request_of(passage(0, 1'500), 4));
  Client client = daemon.connect();
  EXPECT_EQ(client.ask(rows)->cached_tokens, 0u);
  const Progress done = *client.generate(rows);
  EXPECT_EQ(client.ask(rows)->cached_tokens, most_cached(done));
}

TEST(Embeddings, WhatTheModelDoesNotTakeIsRefusedByName) {
  const Daemon daemon;
  Client client = daemon.connect();
  const auto refusal = [&](const GenerateRequest& request) {
    const auto result = client.generate(request);
    return result ? result->error.text : result.error().text;
  };
  GenerateRequest rows = embedded(request_of("In the beginning", 4));
  rows.embedding_width = 128;
  EXPECT_THAT(refusal(rows), HasSubstr("rows of 128 values; the model's hidden_size is 256"));
  rows.embedding_width = kHidden;
  rows.prompt_embeds[kHidden + 2] = std::nanf("");
  EXPECT_THAT(refusal(rows), HasSubstr("value 2 of row 1 is nan; give finite numbers"));
  rows.prompt_embeds[kHidden + 2] = 0;
  rows.prompt_logprobs = 1;
  EXPECT_THAT(refusal(rows), HasSubstr("there are no tokens to be scored"));
}

/// Numbers so large that the model's own become infinite harm nobody but their request.
TEST(Embeddings, HugeRowsHarmNobodyElse) {
  const Daemon daemon;
  GenerateRequest rows = embedded(request_of(passage(0, 1'500), 12));
  const Progress expected = *daemon.connect(0).generate(rows);
  const Json engine = daemon.engine(0)["pid"];
  GenerateRequest huge = rows;
  for (float& value : huge.prompt_embeds) value *= 1e38f;
  std::vector<Client> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(daemon.connect(0));
  const auto results = generate_all(clients, {huge, rows, huge, rows});
  for (const std::size_t honest : {1, 3}) EXPECT_EQ(ids(results[honest]), ids(expected));
  for (const std::size_t own : {0, 2}) EXPECT_NE(results[own].reason, Finish::none);
  EXPECT_EQ(daemon.engine(0)["pid"], engine) << "it has not ended";
  EXPECT_TRUE(daemon.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
