#include "models/text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

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

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (Index token = 0; token < tokens_.size(); ++token)
    if (!tokens_[token].content.empty()) add(token);
  from_root_.fill(0);
  for (const Edge& edge : nodes_[0].edges) from_root_[edge.byte] = edge.to;
  link();
}

/// Puts a token's bytes into the tree, the last one first.
void AddedTokenMatcher::add(Index token) {
  const std::string& content = tokens_[token].content;
  Index node = 0;
  for (std::size_t i = content.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(content[i]);
    Index next = child(node, byte);
    if (next == kNone) {
      next = static_cast<Index>(nodes_.size());
      nodes_[node].edges.push_back({byte, next});
      nodes_.emplace_back();
    }
    node = next;
  }
  if (nodes_[node].longest == kNone) nodes_[node].longest = token;
}

/// Sets the fallbacks, level by level: a fallback lies nearer to the root.
void AddedTokenMatcher::link() {
  std::vector<Index> level;
  for (const Edge& edge : nodes_[0].edges) level.push_back(edge.to);
  while (!level.empty()) {
    std::vector<Index> next_level;
    for (const Index parent : level)
      for (const Edge& edge : nodes_[parent].edges) {
        Node& node = nodes_[edge.to];
        node.fallback = step(nodes_[parent].fallback, edge.byte);
        if (node.longest == kNone) node.longest = nodes_[node.fallback].longest;
        next_level.push_back(edge.to);
      }
    level = std::move(next_level);
  }
}

AddedTokenMatcher::Index AddedTokenMatcher::child(Index node, unsigned char byte) const {
  const auto& edges = nodes_[node].edges;
  const auto found = std::ranges::find(edges, byte, &Edge::byte);
  return found == edges.end() ? kNone : found->to;
}

AddedTokenMatcher::Index AddedTokenMatcher::step(Index node, unsigned char byte) const {
  while (node != 0) {
    if (const Index next = child(node, byte); next != kNone) return next;
    node = nodes_[node].fallback;
  }
  return from_root_[byte];
}

/// For each place where a token begins the longest one; the last place first.
std::vector<AddedTokenMatcher::Match> AddedTokenMatcher::tokens_by_begin(
    std::string_view text) const {
  std::vector<Match> matches;
  Index node = 0;
  for (std::size_t at = text.size(); at-- > 0;) {
    node = step(node, static_cast<unsigned char>(text[at]));
    if (nodes_[node].longest != kNone) matches.push_back({at, nodes_[node].longest});
  }
  return matches;
}

std::vector<AddedTokenMatcher::Section> AddedTokenMatcher::cut(std::string_view text) const {
  std::vector<Section> sections;
  const auto matches = tokens_by_begin(text);
  std::size_t taken = 0, token_end = 0;
  // The end of the last run of white space behind a token. Tokens that lie in it are not measured
  // again: a text may be one long run of them.
  std::size_t space_end = 0;
  const auto take_text = [&](std::size_t end) {
    if (end > taken) sections.push_back({text.substr(taken, end - taken), nullptr});
  };
  for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
    const std::size_t at = match->begin;
    if (at < token_end) continue;  // inside the token before
    const AddedToken& token = tokens_[match->token];
    // A token may lie in the white space that the one before has swallowed.
    const auto between = text.substr(std::min(taken, at), at - std::min(taken, at));
    take_text(at - (token.lstrip ? trailing_space(between) : 0));
    sections.push_back({text.substr(at, token.content.size()), &token});
    token_end = at + token.content.size();
    if (token.rstrip && token_end > space_end)
      space_end = token_end + leading_space(text.substr(token_end));
    taken = token.rstrip ? space_end : token_end;
  }
  take_text(text.size());
  return sections;
}

}  // namespace kvhive
