#pragma once
// What a step was planned without, because the step before was not done: the tokens that the step
// before has sampled.

#include <span>
#include <utility>
#include <vector>

#include "actors/messages.hpp"

namespace kvhive {

class NewestTokens {
 public:
  NewestTokens() = default;
  /// \param sampled  by the step that was just computed
  explicit NewestTokens(std::span<const SampledToken> sampled);

  /// Gives the plan's sequences the tokens that were to come. The order of sequences is mostly that
  /// of the step before.
  void fill_in(StepPlan& plan) const;

 private:
  std::vector<std::pair<SeqId, TokenId>> tokens_;
};

}  // namespace kvhive
