#include "models/sampling/logits_processor.hpp"

#include <algorithm>
#include <limits>

namespace kvhive {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

std::vector<TokenId> each_once(std::span<const TokenId> tokens, std::uint32_t vocab_size) {
  std::vector<bool> is_there(vocab_size);
  std::vector<TokenId> once;
  for (const TokenId token : tokens) {
    if (is_there.at(token)) continue;
    is_there[token] = true;
    once.push_back(token);
  }
  return once;
}

/// How often each token of an answer is in it. One of these is used again and again: to clear it
/// costs as much as the answer is long, not as the vocabulary.
class Counts {
 public:
  void count(std::span<const TokenId> tokens, std::size_t vocab_size) {
    if (of_.size() < vocab_size) of_.resize(vocab_size);
    for (const TokenId token : tokens)
      if (of_[token]++ == 0) found_.push_back(token);
  }
  void clear() {
    for (const TokenId token : found_) of_[token] = 0;
    found_.clear();
  }
  std::span<const TokenId> found() const { return found_; }  ///< each once
  std::uint32_t operator[](TokenId token) const { return of_[token]; }

 private:
  std::vector<std::uint32_t> of_;
  std::vector<TokenId> found_;
};

}  // namespace

Expected<std::shared_ptr<const LogitsProcessor>> LogitsProcessor::make(
    const TokenRules& rules, std::vector<std::vector<TokenId>> bad_words,
    std::span<const TokenId> prompt, std::vector<TokenId> end_tokens, std::uint32_t vocab_size) {
  if (rules.change_no_logits()) return nullptr;
  for (const TokenBias& each : rules.logit_bias)
    if (auto known = check_vocabulary({&each.token, 1}, vocab_size, "logit_bias"); !known)
      return forward_error(known);
  if (auto known = check_vocabulary(rules.allowed_token_ids, vocab_size, "allowed_token_ids");
      !known)
    return forward_error(known);
  for (const auto& word : bad_words)
    if (auto known = check_vocabulary(word, vocab_size, "bad_words"); !known)
      return forward_error(known);
  // What no model can say ends nothing.
  std::erase_if(end_tokens, [&](TokenId token) {
    return !check_vocabulary({&token, 1}, vocab_size);
  });

  LogitsProcessor made;
  made.presence_ = rules.presence_penalty;
  made.frequency_ = rules.frequency_penalty;
  made.repetition_ = rules.repetition_penalty;
  made.min_tokens_ = rules.min_tokens;
  made.biases_ = rules.logit_bias;
  made.allowed_ = each_once(rules.allowed_token_ids, vocab_size);
  made.end_tokens_ = std::move(end_tokens);
  made.bad_words_ = std::move(bad_words);
  if (made.repetition_ != 1) made.prompt_ = each_once(prompt, vocab_size);
  return std::make_shared<const LogitsProcessor>(std::move(made));
}

void LogitsProcessor::apply(std::span<float> logits, std::span<const TokenId> answer) const {
  forbid(logits, answer);
  for (const TokenBias& each : biases_) logits[each.token] += each.bias;
  if (presence_ != 0 || frequency_ != 0 || repetition_ != 1) penalise(logits, answer);
}

void LogitsProcessor::forbid(std::span<float> logits, std::span<const TokenId> answer) const {
  if (!allowed_.empty()) {
    std::vector<float> kept;
    kept.reserve(allowed_.size());
    for (const TokenId token : allowed_) kept.push_back(logits[token]);
    std::ranges::fill(logits, kImpossible);
    for (std::size_t i = 0; i < allowed_.size(); ++i) logits[allowed_[i]] = kept[i];
  }
  for (const auto& word : bad_words_) {
    const std::span begin(word.begin(), word.end() - 1);
    if (begin.size() <= answer.size() && std::ranges::equal(answer.last(begin.size()), begin))
      logits[word.back()] = kImpossible;
  }
  if (answer.size() < min_tokens_)
    for (const TokenId token : end_tokens_) logits[token] = kImpossible;
}

void LogitsProcessor::penalise(std::span<float> logits, std::span<const TokenId> answer) const {
  thread_local Counts counts;
  counts.count(answer, logits.size());
  if (repetition_ != 1) {
    const auto repeated = [&](TokenId token) {
      float& logit = logits[token];
      logit = logit > 0 ? logit / repetition_ : logit * repetition_;
    };
    for (const TokenId token : prompt_)
      if (counts[token] == 0) repeated(token);
    for (const TokenId token : counts.found()) repeated(token);
  }
  for (const TokenId token : counts.found()) {
    logits[token] -= frequency_ * static_cast<float>(counts[token]);
    logits[token] -= presence_;
  }
  counts.clear();
}

}  // namespace kvhive
