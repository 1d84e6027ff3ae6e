#pragma once
// Guesses what comes next in a text from what came before in it: where its last tokens stood
// earlier, what followed them there may follow now. Such guesses (drafts) cost no model. A step
// computes them together with the newest token, and keeps those that the model would have sampled
// (actors/speculation/accepted.hpp).
//
// Source: vLLM's n-gram proposer (v1/spec_decode/ngram_proposer.py), A. Saxena, "Prompt lookup
// decoding".

#include <cstdint>
#include <span>

#include "base/ids.hpp"

namespace kvhive {

struct PromptLookup {
  std::uint32_t drafts = 0;    ///< the most tokens to guess; 0 = never guess
  std::uint32_t longest = 4;   ///< tokens that are looked for: at most so many,
  std::uint32_t shortest = 2;  ///< and at least so many
};

/// The tokens behind the longest run that ends the text and stands in it earlier, at most `most`
/// and lookup.drafts; of several such places, the first. Empty if there is none. Reads the text
/// once.
///
/// \pre 1 <= lookup.shortest <= lookup.longest
/// \return  a part of `text`
std::span<const TokenId> look_up(std::span<const TokenId> text, const PromptLookup& lookup,
                                 std::size_t most);

}  // namespace kvhive
