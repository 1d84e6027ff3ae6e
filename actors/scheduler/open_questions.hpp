#pragma once
// The requests of one engine that only ask whether a prompt finds room. They are not queued: the
// block manager answers them beside its steps, in small batches, so that no step waits long. A
// batch has one of each domain, which take turns.

#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "actors/messages.hpp"

namespace kvhive {

class OpenQuestions {
 public:
  /// A batch takes no more questions when it has so many tokens.
  static constexpr std::size_t kMostTokens = 8192;

  void add(SeqId seq, Submission submission);
  /// What to ask now; nothing if there is nothing, or the last batch has not been answered.
  std::optional<Questions> next(std::size_t running);
  /// Who asked; the question is answered.
  Submission take(SeqId seq);
  std::size_t size() const { return open_.size(); }

 private:
  std::unordered_map<SeqId, Submission> open_;
  std::map<DomainId, std::deque<SeqId>> to_ask_;  ///< no domain without any
  DomainId next_{};
  std::size_t out_ = 0;  ///< asked and not answered
};

}  // namespace kvhive
