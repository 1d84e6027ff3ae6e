#pragma once
// The tokens that spell a word, for rules about words that are rules about tokens.

#include <string>
#include <vector>

#include "models/text/tokenizer.hpp"

namespace kvhive {

/// The tokens of each text as an answer may begin with it, and as it may follow a space, if these
/// do not end in the others. (vLLM's SamplingParams.update_from_tokenizer() takes the second only
/// if it has as many tokens: " son" stays possible where "son" has two and " son" is one.) \return
/// none of them empty; Errc::bad_argument if a text is not UTF-8
[[nodiscard]] Expected<std::vector<std::vector<TokenId>>> spellings(
    const Tokenizer& tokenizer, const std::vector<std::string>& words);

}  // namespace kvhive
