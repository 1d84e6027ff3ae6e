#include "models/text/spellings.hpp"

#include <algorithm>

namespace kvhive {

Expected<std::vector<std::vector<TokenId>>> spellings(const Tokenizer& tokenizer,
                                                      const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> all;
  for (const std::string& word : words) {
    const std::string bare =
        word.substr(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
    auto first = tokenizer.encode(bare, AddSpecial::no);
    if (!first) return forward_error(first);
    auto behind_space = tokenizer.encode(" " + bare, AddSpecial::no);
    if (!behind_space) return forward_error(behind_space);
    if (first->empty()) continue;
    const bool has_first = behind_space->size() >= first->size() &&
                           std::equal(first->rbegin(), first->rend(), behind_space->rbegin());
    all.push_back(std::move(*first));
    if (!has_first && !behind_space->empty()) all.push_back(std::move(*behind_space));
  }
  return all;
}

}  // namespace kvhive
