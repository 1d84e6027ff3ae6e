#include "actors/long_prompts.hpp"

#include <utility>

namespace kvhive {

void LongPrompts::add(Submission submission, std::string text) {
  const RequestKey key = submission.key;
  const auto stage = std::make_shared<std::atomic<Stage>>(Stage::waits);
  auto tokenise = [this, key, text = std::move(text), sink = submission.sink,
                   weak_stage = std::weak_ptr(stage)] {
    const auto mine = weak_stage.lock();
    if (!mine) return;
    if (Stage waits = Stage::waits; !mine->compare_exchange_strong(waits, Stage::in_work)) return;
    if (!sink->read()) return loop_.post([this, key, mine] { (void)take_out(key, mine); });
    auto tokens = tokenizer_.encode(text, AddSpecial::yes);
    loop_.post([this, key, mine, tokens = std::move(tokens)] { deliver(key, mine, tokens); });
  };
  auto& texts = texts_[key.channel];
  if (!texts) texts = std::make_shared<Texts>();
  const DomainId domain = submission.domain;
  pending_.insert_or_assign(key, Pending{std::move(submission), stage});
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

bool LongPrompts::abort(const RequestKey& request) {
  const auto found = pending_.find(request);
  if (found == pending_.end()) return false;
  Stage waits = Stage::waits;
  if (!found->second.stage->compare_exchange_strong(waits, Stage::ended)) {
    found->second.is_aborted = true;
    return true;
  }
  end_aborted(*found->second.submission.sink);
  pending_.erase(found);
  return true;
}

void LongPrompts::end_aborted(OutputSink& sink) {
  sink.finished(FinishReason::abort, {}, {}, 0);
  sink.flush();
}

/// Nothing if the request was forgotten, or aborted: then it is ended.
std::optional<Submission> LongPrompts::take_out(const RequestKey& request,
                                                const std::shared_ptr<std::atomic<Stage>>& stage) {
  const auto found = pending_.find(request);
  if (found == pending_.end() || found->second.stage != stage) return std::nullopt;
  Submission submission = std::move(found->second.submission);
  const bool is_aborted = found->second.is_aborted;
  pending_.erase(found);
  if (!is_aborted) return submission;
  end_aborted(*submission.sink);
  return std::nullopt;
}

void LongPrompts::deliver(const RequestKey& request,
                          const std::shared_ptr<std::atomic<Stage>>& stage,
                          Expected<std::vector<TokenId>> tokens) {
  if (auto submission = take_out(request, stage))
    on_tokens_(std::move(*submission), std::move(tokens));
}

}  // namespace kvhive
