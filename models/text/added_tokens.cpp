#include "models/text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

unsigned char first_byte(std::string_view text) { return static_cast<unsigned char>(text.front()); }

std::size_t leading_space(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const auto head = utf8_head(text.substr(bytes));
    if (head.kind != Utf8Head::Kind::character || !is_white_space(head.code_point)) break;
    bytes += head.bytes;
  }
  return bytes;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t start = end - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_white_space(utf8_head(text.substr(start)).code_point)) break;
    end = start;
  }
  return text.size() - end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::stable_sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
    return std::pair(first_byte(a.content), b.content.size()) <
           std::pair(first_byte(b.content), a.content.size());
  });
  for (const auto& token : tokens_) ++first_[first_byte(token.content) + 1];
  for (std::size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

const AddedToken* AddedTokenMatcher::match_at(std::string_view rest) const {
  const auto byte = first_byte(rest);
  for (std::size_t i = first_[byte]; i < first_[byte + 1]; ++i)
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

std::vector<AddedTokenMatcher::Section> AddedTokenMatcher::cut(std::string_view text) const {
  std::vector<Section> sections;
  std::size_t taken = 0;
  const auto take_text = [&](std::size_t end) {
    if (end > taken) sections.push_back({text.substr(taken, end - taken), nullptr});
  };
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = match_at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    const std::size_t space = token->lstrip ? trailing_space(text.substr(taken, at - taken)) : 0;
    take_text(at - space);
    sections.push_back({text.substr(at, token->content.size()), token});
    at += token->content.size();
    if (token->rstrip) at += leading_space(text.substr(at));
    taken = at;
  }
  take_text(text.size());
  return sections;
}

}  // namespace kvhive
