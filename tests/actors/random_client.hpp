#pragma once
// Random requests of clients, and whether they got what the oracle computes from their prompts.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "hashing/cache_salt.hpp"
#include "hashing/embedded_prompt.hpp"
#include "tests/actors/plain_ring.hpp"

namespace kvhive::testing {

inline std::uint32_t between(std::mt19937_64& random, std::size_t low, std::size_t high) {
  return static_cast<std::uint32_t>(std::uniform_int_distribution<std::size_t>(low, high)(random));
}

struct RandomClient {
  RequestKey key{};
  std::vector<TokenId> prompt{};
  bool is_embedded = false;  ///< `prompt` is what the rows of the prompt stand for
  GenerationParams params{};
  DomainId domain{};
  std::int32_t adapter = -1;
  ModelId model{};
  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  bool is_aborted = false;
  bool was_taken_over = false;

  /// With the tokens that were generated so far as its journal.
  Submission submission() const {
    const std::vector<TokenId> journal = recording->tokens;
    Submission submission{
        key,   prompt, journal, params, std::make_shared<RecordingSink>(recording, journal.size()),
        domain};
    submission.adapter = adapter;
    if (adapter >= 0) submission.salt = start_key("", std::to_string(adapter));
    if (is_embedded) {
      submission.embedded = std::make_shared<EmbeddedPrompt>(
          *EmbeddedPrompt::make(1, std::vector<float>(prompt.begin(), prompt.end())));
      submission.prompt.assign(prompt.size(), kEmbedded);
    }
    return submission;
  }

  /// \param max_model_len  of the engine
  ::testing::AssertionResult got_what_the_oracle_computes(std::uint32_t max_model_len) const {
    const OracleOutput expected = oracle_output(prompt, params, max_model_len, {adapter, model});
    const Recording& got = *recording;
    const auto wrong = [&](const char* what) {
      return ::testing::AssertionFailure()
             << "request " << key.slot << ": " << what << "; it ended by " << to_string(got.reason)
             << " " << got.error.text << " after " << got.tokens.size() << " tokens of "
             << expected.tokens.size();
    };
    if (!got.is_finished()) return wrong("it has not ended");
    if (is_aborted && got.reason == FinishReason::abort) {
      const bool begins = got.tokens.size() <= expected.tokens.size() &&
                          std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin());
      return begins ? ::testing::AssertionSuccess() : wrong("it was aborted behind wrong tokens");
    }
    if (got.reason != expected.reason) return wrong("another end than the oracle's");
    if (got.tokens != expected.tokens) return wrong("other tokens than the oracle's");
    if (!params.prompt_logprobs) return ::testing::AssertionSuccess();
    if (got.prompt != oracle_scores(prompt, *params.prompt_logprobs, {adapter, model}))
      return wrong("its prompt is scored otherwise than by the oracle");
    // A successor need not score what the dead engine had scored, and reads the cache.
    if (!was_taken_over && got.stats.cached_tokens != 0) return wrong("a scored prompt was cached");
    return ::testing::AssertionSuccess();
  }
};

/// Invents clients whose prompts share beginnings.
class RandomClients {
 public:
  explicit RandomClients(std::mt19937_64& random) : random_(random) {
    for (auto& prefix : prefixes_) prefix = random_tokens(between(3, 14));
  }

  RandomClient next(std::uint32_t slot, std::uint32_t max_model_len) {
    RandomClient client;
    client.key = {1, slot};
    if (between(0, 2) != 0) client.prompt = prefixes_[between(0, prefixes_.size() - 1)];
    const auto tail = random_tokens(between(client.prompt.empty() ? 1 : 0, 12));
    client.prompt.insert(client.prompt.end(), tail.begin(), tail.end());
    const std::size_t most = max_model_len - 1;
    if (client.prompt.size() > most) client.prompt.resize(most);
    client.params.max_tokens = between(1, 40);
    client.params.ignore_eos = between(0, 3) != 0;
    client.params.priority = static_cast<std::int32_t>(between(0, 3)) - 1;
    if (between(0, 5) == 0) client.params.stop_token_ids = random_tokens(1);
    if (between(0, 3) == 0) client.domain = DomainId{1};
    if (between(0, 3) == 0) client.adapter = static_cast<std::int32_t>(between(0, 1));
    if (between(0, 4) == 0) client.params.prompt_logprobs = between(0, 3);
    if (between(0, 3) == 0)
      client.params.rules = {.presence_penalty = 1,
                             .min_tokens = between(0, client.params.max_tokens)};
    client.params.will_be_forked = between(0, 1) == 0;
    client.is_embedded = between(0, 4) == 0 && !client.params.prompt_logprobs;
    if (client.is_embedded)
      for (TokenId& token : client.prompt) token += kOracleVocab;
    return client;
  }

 private:
  std::uint32_t between(std::size_t low, std::size_t high) {
    return testing::between(random_, low, high);
  }
  std::vector<TokenId> random_tokens(std::size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(between(0, kOracleVocab - 1));
    return tokens;
  }

  std::mt19937_64& random_;
  std::array<std::vector<TokenId>, 3> prefixes_;
};

}  // namespace kvhive::testing
