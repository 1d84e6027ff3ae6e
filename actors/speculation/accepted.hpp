#pragma once
// The two ends of a step with drafts: for which rows the model samples, and which of the sampled
// tokens stand. A row's token depends on its logits, its position, the request's seed and the
// tokens before it only, and its logits only on these tokens. So a draft that is equal to the token
// sampled before it is what a step without drafts would have come to, whether sampling is greedy or
// not, and what is sampled behind a draft that is not equal is dropped: the tokens are the same
// with drafts and without.
//
// Source: Y. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023),
// with a proposal that is certain of its tokens.

#include <span>
#include <vector>

#include "actors/messages.hpp"

namespace kvhive {

/// A row of a step whose next token is sampled.
struct SampledRow {
  const ScheduledSequence* work;  ///< of the plan
  std::uint32_t row;              ///< in ScheduledSequence::tokens
  /// The place that the sampled token will have in its sequence.
  std::uint64_t position() const { return std::uint64_t{work->start} + row + 1; }
  /// The answer's tokens that the sampled one follows, if the work says them: of the guesses, those
  /// up to the row.
  std::vector<TokenId> answer() const {
    std::vector<TokenId> tokens = work->answer;
    tokens.insert(tokens.end(), work->tokens.end() - work->drafts, work->tokens.begin() + row + 1);
    return tokens;
  }
};

/// In the order of the work: of each sequence that samples the last known token's row, then those
/// of its drafts.
std::vector<SampledRow> sampled_rows(const StepPlan& plan);

/// The tokens that stand, of those sampled for all rows: one of each sequence, and one more for
/// each draft that was right.
std::vector<SampledToken> accepted(std::span<const SampledRow> rows,
                                   std::vector<GeneratedToken> sampled);

}  // namespace kvhive
