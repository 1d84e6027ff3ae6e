#include "actors/long_prompts.hpp"

#include <utility>

namespace kvhive {

void LongPrompts::add(Submission submission, Read read) {
  const RequestKey key = submission.key;
  const auto stage = std::make_shared<std::atomic<Stage>>(Stage::waits);
  auto job = [this, key, read = std::move(read), sink = submission.sink,
              weak_stage = std::weak_ptr(stage)] {
    const auto mine = weak_stage.lock();
    if (!mine) return;
    if (Stage waits = Stage::waits; !mine->compare_exchange_strong(waits, Stage::in_work)) return;
    if (!sink->read()) return loop_.post([this, key, mine] { (void)take_out(key, mine); });
    loop_.post([this, key, mine, prompt = read()] { deliver(key, mine, prompt); });
  };
  auto& prompts = prompts_[key.channel];
  if (!prompts) prompts = std::make_shared<Prompts>();
  const DomainId domain = submission.domain;
  pending_.insert_or_assign(key, Pending{std::move(submission), stage});
  const std::lock_guard lock(prompts->mutex);
  prompts->waiting.push_back(std::move(job));
  if (!std::exchange(prompts->is_in_work, true))
    worker_.add(domain.value, [prompts] { return read_one(*prompts); });
}

/// In the worker's thread. True = the channel has no more prompts.
bool LongPrompts::read_one(Prompts& prompts) {
  std::function<void()> job;
  {
    const std::lock_guard lock(prompts.mutex);
    job = std::move(prompts.waiting.front());
    prompts.waiting.pop_front();
  }
  job();
  const std::lock_guard lock(prompts.mutex);
  prompts.is_in_work = !prompts.waiting.empty();
  return !prompts.is_in_work;
}

void LongPrompts::forget(std::uint64_t channel) {
  prompts_.erase(channel);  // the worker keeps them for as long as it has something to do with them
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
                          Expected<Prompt> prompt) {
  if (auto submission = take_out(request, stage))
    on_prompt_(std::move(*submission), std::move(prompt));
}

}  // namespace kvhive
