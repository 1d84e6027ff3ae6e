// What a request's rules about tokens cost when a token of it is chosen: one row of a large
// vocabulary, with rules and without, alternately.
//
// Usage: bench_rules [--brief]

#include <cstdio>
#include <cstring>
#include <random>

#include "models/sampling/logits_processor.hpp"
#include "models/sampling/sampler.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

constexpr std::uint32_t kVocabulary = 128'256;  // Llama 3's
constexpr std::size_t kPrompt = 2000, kAnswer = 1000;

struct Rules {
  const char* name;
  TokenRules rules;
};

std::vector<TokenId> tokens(std::size_t count) {
  std::mt19937 random(3);
  std::vector<TokenId> made(count);
  for (TokenId& token : made) token = static_cast<TokenId>(random() % kVocabulary);
  return made;
}

std::vector<Rules> all_rules() {
  std::vector<Rules> all = {
      {"frequency penalty", {.frequency_penalty = 0.5f}},
      {"all three penalties",
       {.presence_penalty = 0.5f, .frequency_penalty = 0.5f, .repetition_penalty = 1.1f}},
      {"300 biases", {}},
      {"1,000 allowed tokens", {}}};
  for (const TokenId token : tokens(300)) all[2].rules.logit_bias.push_back({token, -1});
  all[3].rules.allowed_token_ids = tokens(1000);
  return all;
}

void run(int pairs) {
  std::vector<float> logits(kVocabulary);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (float& logit : logits) logit = normal(random);
  const auto prompt = tokens(kPrompt), answer = tokens(kAnswer);
  std::printf("a row of %u logits, a prompt of %zu tokens, an answer of %zu; medians of %d\n\n",
              kVocabulary, kPrompt, kAnswer, pairs);
  std::printf("%-22s %12s %14s %14s\n", "", "temperature", "without, us", "with, us");
  for (const Rules& each : all_rules())
    for (const float temperature : {0.0f, 0.7f}) {
      const SamplingParams params{.temperature = temperature, .top_p = 0.95f, .seed = 1};
      const auto processor = LogitsProcessor::make(each.rules, {}, prompt, {}, kVocabulary).value();
      std::vector<double> plain, ruled;
      TokenId sum = 0;
      for (int i = 0; i < pairs; ++i) {
        const auto position = static_cast<std::uint64_t>(i);
        plain.push_back(seconds_of([&] { sum += sample(logits, params, position).token; }));
        ruled.push_back(seconds_of([&] {
          std::vector<float> changed(logits);
          processor->apply(changed, answer);
          sum += sample(logits, changed, params, position).token;
        }));
      }
      std::printf("%-22s %12.1f %14.0f %14.0f%s\n", each.name, temperature, median(plain) * 1e6,
                  median(ruled) * 1e6, sum == -1 ? " " : "");
    }
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  kvhive::bench::run(argc > 1 && std::strcmp(argv[1], "--brief") == 0 ? 5 : 201);
}
