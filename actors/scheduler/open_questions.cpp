#include "actors/scheduler/open_questions.hpp"

#include "base/check.hpp"

namespace kvhive {

void OpenQuestions::add(SeqId seq, Submission submission) {
  to_ask_[submission.domain].push_back(seq);
  open_.emplace(seq, std::move(submission));
}

std::optional<Questions> OpenQuestions::next(std::size_t running) {
  if (out_ != 0 || to_ask_.empty()) return std::nullopt;
  Questions questions{.asked = {}, .running = running};
  std::size_t tokens = 0;
  for (std::size_t domains = to_ask_.size(); domains != 0 && tokens < kMostTokens; --domains) {
    auto turn = to_ask_.lower_bound(next_);
    if (turn == to_ask_.end()) turn = to_ask_.begin();
    const SeqId seq = turn->second.front();
    turn->second.pop_front();
    next_ = DomainId{static_cast<std::uint16_t>(turn->first.value + 1)};
    if (turn->second.empty()) to_ask_.erase(turn);
    const Submission& asked = open_.at(seq);
    tokens += asked.prompt.size();
    questions.asked.push_back({seq, asked.prompt, asked.domain, asked.salt,
                               !asked.params.prompt_logprobs, asked.embedded});
  }
  out_ = questions.asked.size();
  return questions;
}

Submission OpenQuestions::take(SeqId seq) {
  const auto found = open_.find(seq);
  KV_CHECK(found != open_.end() && out_ != 0, seq.value);
  --out_;
  Submission submission = std::move(found->second);
  open_.erase(found);
  return submission;
}

}  // namespace kvhive
