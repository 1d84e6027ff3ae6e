#pragma once
// Changes a row of logits as a request's rules want it, before a token is chosen from it. A pure
// function of the logits and of the request's tokens, so the tokens are the same whatever other
// requests run, after a preemption, on another engine, and behind a right guess.
//
// Source: vLLM V1's Sampler: allowed tokens, bad words, min_tokens, biases, then the penalties:
// repetition, frequency, presence. What is reported of a token stays of the logits as they were.

#include <memory>
#include <span>
#include <vector>

#include "config/sampling/token_rules.hpp"

namespace kvhive {

class LogitsProcessor {
 public:
  /// \param prompt      the request's, each in the vocabulary
  /// \param end_tokens  those that end the answer, also those that this request goes on after
  /// \param bad_words   the tokens of the rules' (models/text/spellings.hpp), none of them empty
  /// \return  null if the rules change no logits. Errc::bad_argument: a token of theirs is not in
  ///          the vocabulary
  [[nodiscard]] static Expected<std::shared_ptr<const LogitsProcessor>> make(
      const TokenRules& rules, std::vector<std::vector<TokenId>> bad_words,
      std::span<const TokenId> prompt, std::vector<TokenId> end_tokens, std::uint32_t vocab_size);

  /// \param logits  [vocab_size]
  /// \param answer  the tokens behind the prompt, up to the one that is to be chosen
  void apply(std::span<float> logits, std::span<const TokenId> answer) const;

 private:
  LogitsProcessor() = default;
  void forbid(std::span<float> logits, std::span<const TokenId> answer) const;
  void penalise(std::span<float> logits, std::span<const TokenId> answer) const;

  float presence_ = 0, frequency_ = 0, repetition_ = 1;
  std::uint32_t min_tokens_ = 0;
  std::vector<TokenBias> biases_;
  std::vector<TokenId> end_tokens_;
  std::vector<TokenId> prompt_;   ///< each once; empty if nothing asks for them
  std::vector<TokenId> allowed_;  ///< empty = all
  std::vector<std::vector<TokenId>> bad_words_;
};

}  // namespace kvhive
