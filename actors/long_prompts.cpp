#include "actors/long_prompts.hpp"

#include <utility>

namespace kvhive {

void LongPrompts::add(Submission submission, std::string text) {
  const RequestKey key = submission.key;
  const auto mark = std::make_shared<const bool>(true);
  auto tokenise = [this, key, text = std::move(text), sink = submission.sink,
                   weak_mark = std::weak_ptr(mark)] {
    const auto is_wanted = weak_mark.lock();
    if (!is_wanted) return;
    sink->set_running(true);
    auto tokens = tokenizer_.encode(text, AddSpecial::yes);
    sink->set_running(false);
    loop_.post(
        [this, key, is_wanted, tokens = std::move(tokens)] { deliver(key, is_wanted, tokens); });
  };
  auto& texts = texts_[key.channel];
  if (!texts) texts = std::make_shared<Texts>();
  const DomainId domain = submission.domain;
  pending_.insert_or_assign(key, Pending{std::move(submission), mark});
  const std::lock_guard lock(texts->mutex);
  texts->waiting.push_back(std::move(tokenise));
  if (!std::exchange(texts->is_in_work, true))
    worker_.add(domain.value, [texts] { return tokenise_one(*texts); });
}

/// In the worker's thread. True = the channel has no more texts.
bool LongPrompts::tokenise_one(Texts& texts) {
  std::function<void()> tokenise;
  {
    const std::lock_guard lock(texts.mutex);
    tokenise = std::move(texts.waiting.front());
    texts.waiting.pop_front();
  }
  tokenise();
  const std::lock_guard lock(texts.mutex);
  texts.is_in_work = !texts.waiting.empty();
  return !texts.is_in_work;
}

void LongPrompts::forget(std::uint64_t channel) {
  texts_.erase(channel);  // the worker keeps them for as long as it has something to do with them
  pending_.erase(pending_.lower_bound({channel, 0}), pending_.lower_bound({channel + 1, 0}));
}

bool LongPrompts::forget(const RequestKey& request) { return pending_.erase(request) != 0; }

void LongPrompts::deliver(const RequestKey& request, const std::shared_ptr<const bool>& is_wanted,
                          Expected<std::vector<TokenId>> tokens) {
  const auto found = pending_.find(request);
  if (found == pending_.end() || found->second.is_wanted != is_wanted) return;
  Submission submission = std::move(found->second.submission);
  pending_.erase(found);
  on_tokens_(std::move(submission), std::move(tokens));
}

}  // namespace kvhive
