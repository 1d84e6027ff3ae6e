#include "models/text/bpe.hpp"

#include <limits>
#include <queue>

#include "base/check.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// A symbol in a doubly linked list inside a vector; merging keeps the left one.
struct Symbol {
  TokenId token = 0;
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
  bool alive = true;
};

struct Candidate {
  std::uint32_t rank = 0;
  std::uint32_t left = 0;  ///< index of the left symbol
  TokenId merged = 0;

  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

class Merger {
 public:
  Merger(const Bpe& bpe, const std::vector<TokenId>& tokens) : bpe_(bpe), symbols_(tokens.size()) {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    for (std::uint32_t i = 0; i < count; ++i)
      symbols_[i] = {tokens[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1, true};
    for (std::uint32_t i = 0; i + 1 < count; ++i) propose(i);
  }

  void run(std::vector<TokenId>& out) {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      if (is_current(best)) merge(best);
    }
    for (std::uint32_t i = 0; i != kNone; i = symbols_[i].next) out.push_back(symbols_[i].token);
  }

 private:
  const Merge* merge_of(std::uint32_t left) const {
    const auto& symbol = symbols_[left];
    if (!symbol.alive || symbol.next == kNone) return nullptr;
    const auto found = bpe_.merges.find(pair_key(symbol.token, symbols_[symbol.next].token));
    return found == bpe_.merges.end() ? nullptr : &found->second;
  }

  void propose(std::uint32_t left) {
    if (const Merge* merge = merge_of(left)) candidates_.push({merge->rank, left, merge->merged});
  }

  /// Candidates are not removed when a neighbour is merged away; a stale one no longer names the
  /// pair that now stands at its place.
  bool is_current(const Candidate& candidate) const {
    const Merge* merge = merge_of(candidate.left);
    return merge && merge->rank == candidate.rank && merge->merged == candidate.merged;
  }

  void merge(const Candidate& candidate) {
    auto& left = symbols_[candidate.left];
    auto& right = symbols_[left.next];
    left.token = candidate.merged;
    right.alive = false;
    left.next = right.next;
    if (left.next != kNone) symbols_[left.next].previous = candidate.left;
    if (left.previous != kNone) propose(left.previous);
    propose(candidate.left);
  }

  const Bpe& bpe_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
};

}  // namespace

std::vector<TokenId> Bpe::smallest_symbols(std::string_view piece) const {
  std::vector<TokenId> tokens;
  const auto push_bytes = [&](std::string_view bytes) {
    for (const char byte : bytes) tokens.push_back(byte_tokens[static_cast<unsigned char>(byte)]);
  };
  if (symbols == Symbols::bytes) {
    push_bytes(piece);
    return tokens;
  }
  bool after_unknown = false;
  while (!piece.empty()) {
    const auto character = piece.substr(0, utf8_head(piece).bytes);
    const auto found = vocabulary.find(character);
    const bool is_unknown = found == vocabulary.end() && byte_tokens.empty();
    if (found != vocabulary.end())
      tokens.push_back(found->second);
    else if (!is_unknown)
      push_bytes(character);
    else if (!(fuse_unknown && after_unknown))
      tokens.push_back(*unknown);
    after_unknown = is_unknown;
    piece.remove_prefix(character.size());
  }
  return tokens;
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  KV_CHECK(piece.size() < kNone, piece.size());
  if (piece.empty()) return;
  if (ignore_merges) {
    const auto whole = vocabulary.find(piece);
    if (whole != vocabulary.end()) return out.push_back(whole->second);
  }
  Merger(*this, smallest_symbols(piece)).run(out);
}

}  // namespace kvhive
