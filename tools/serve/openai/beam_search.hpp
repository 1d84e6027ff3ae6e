#pragma once
// Beam search over one prompt, by vLLM's rules (BeamSearchOnlineMixin, 0.33): each step extends
// every beam by its likeliest next tokens, twice as many as there are beams, and goes on with the
// likeliest of all. A beam that ends is kept beside them; ended ones take no places. In the end the
// best are those with the highest log-probability, divided by the answer's length to the power of
// the length penalty; the token that ended an answer counts.

#include <memory>
#include <optional>
#include <vector>

#include "kvhive/client.hpp"

namespace kvhive {

struct Beam {
  /// Shared with the beams that go on from it.
  using Token = std::shared_ptr<const OutputToken>;
  std::vector<Token> tokens;  ///< behind the prompt, without the one that ended it
  double logprob = 0;         ///< of all of them, and of the one that ended it
  Token end{};                ///< the end-of-sequence token; null = it was still going on
};

class BeamSearch {
 public:
  struct Rules {
    std::size_t width = 1;         ///< beams, 1 at least
    std::uint32_t max_tokens = 1;  ///< of each answer, 1 at least
    double length_penalty = 1;
    std::vector<TokenId> end_tokens{};
    bool ignores_end = false;
  };
  explicit BeamSearch(Rules rules) : rules_(std::move(rules)) {}

  /// To be extended next. Empty = the search is over.
  const std::vector<Beam>& beams() const { return beams_; }
  /// \param next  for each beam, in order: the likeliest tokens behind it (OutputToken::top)
  void extend(const std::vector<OutputToken>& next);
  /// The best first; `width` of them, if there are as many. The search is over.
  std::vector<Beam> take_best() { return std::move(ended_); }

 private:
  double score(const Beam& beam) const;
  void keep_best();

  const Rules rules_;
  std::vector<Beam> beams_{1};
  std::vector<Beam> ended_;  ///< the best first, at most `width`
};

}  // namespace kvhive
