#include "ipc/channel/rule_lists.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace kvhive {
namespace {

using WordBytes = std::uint32_t;

class Writer {
 public:
  explicit Writer(std::span<std::byte> to) : to_(to) {}
  void put(const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to_.first(bytes).data(), from, bytes);
    to_ = to_.subspan(bytes);
  }
  bool is_full() const { return to_.empty(); }

 private:
  std::span<std::byte> to_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  /// False if there are not so many bytes left.
  bool get(void* to, std::size_t bytes) {
    if (bytes > from_.size()) return false;
    if (bytes != 0) std::memcpy(to, from_.data(), bytes);
    from_ = from_.subspan(bytes);
    return true;
  }
  bool is_empty() const { return from_.empty(); }

 private:
  std::span<const std::byte> from_;
};

template <class Entry>
bool get(Reader& reader, std::vector<Entry>& list, std::size_t count) {
  list.resize(count);
  return reader.get(list.data(), count * sizeof(Entry));
}

}  // namespace

RuleCounts counts_of(const TokenRules& rules) {
  return {static_cast<std::uint32_t>(rules.logit_bias.size()),
          static_cast<std::uint32_t>(rules.allowed_token_ids.size()),
          static_cast<std::uint32_t>(rules.bad_words.size())};
}

std::size_t list_bytes(const TokenRules& rules) {
  std::size_t bytes = rules.logit_bias.size() * sizeof(TokenBias) +
                      rules.allowed_token_ids.size() * sizeof(TokenId);
  for (const std::string& word : rules.bad_words) bytes += sizeof(WordBytes) + word.size();
  return bytes;
}

bool may_take(const RuleCounts& counts, std::size_t bytes) {
  if (counts.biases > kMostBiases || counts.allowed > kMostAllowedTokens ||
      counts.bad_words > kMostBadWords)
    return false;
  const std::size_t least = counts.biases * sizeof(TokenBias) + counts.allowed * sizeof(TokenId) +
                            counts.bad_words * sizeof(WordBytes);
  return bytes >= least && bytes <= least + counts.bad_words * kBadWordBytes;
}

void write_lists(const TokenRules& rules, std::span<std::byte> to) {
  Writer writer(to);
  writer.put(rules.logit_bias.data(), rules.logit_bias.size() * sizeof(TokenBias));
  for (const std::string& word : rules.bad_words) {
    const auto bytes = static_cast<WordBytes>(word.size());
    writer.put(&bytes, sizeof bytes);
  }
  for (const std::string& word : rules.bad_words) writer.put(word.data(), word.size());
  writer.put(rules.allowed_token_ids.data(), rules.allowed_token_ids.size() * sizeof(TokenId));
  KV_CHECK(writer.is_full());
}

Expected<void> read_short_lists(std::span<const std::byte> from, const RuleCounts& counts,
                                TokenRules& rules) {
  const auto damaged = [] {
    return failure(Errc::bad_argument,
                   "sampling: the lists of logit_bias and bad_words are damaged");
  };
  Reader reader(from);
  std::vector<WordBytes> words;
  if (!get(reader, rules.logit_bias, counts.biases) || !get(reader, words, counts.bad_words))
    return damaged();
  rules.bad_words.clear();
  for (const WordBytes bytes : words) {
    if (bytes > kBadWordBytes) return damaged();
    std::string& word = rules.bad_words.emplace_back(bytes, '\0');
    if (!reader.get(word.data(), bytes)) return damaged();
  }
  if (!reader.is_empty()) return damaged();
  return {};
}

}  // namespace kvhive
