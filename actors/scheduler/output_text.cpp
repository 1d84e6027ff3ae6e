#include "actors/scheduler/output_text.hpp"

#include <algorithm>

namespace kvhive {

OutputText::OutputText(const Tokenizer* tokenizer, Stop stop) : stop_(std::move(stop)) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer);
  for (const std::string& text : stop_.texts) longest_stop_ = std::max(longest_stop_, text.size());
}

OutputText::Piece OutputText::push(TokenId token) {
  if (!detokenizer_) return {};
  held_ += detokenizer_->push(token);
  if (++tokens_ <= stop_.min_tokens) unsearched_ = held_.size();
  return release(false);
}

std::string OutputText::finish() {
  if (!detokenizer_) return {};
  held_ += detokenizer_->finish();
  return release(true).text;
}

/// Where the first stop string begins and ends in what is held.
std::optional<OutputText::Match> OutputText::find_stop() const {
  std::optional<Match> first;
  for (const std::string& text : stop_.texts) {
    const std::size_t from = unsearched_ + 1 - std::min(unsearched_ + 1, text.size());
    const std::size_t begin = held_.find(text, from);
    if (begin != std::string::npos && (!first || begin < first->begin))
      first = Match{begin, begin + text.size()};
  }
  return first;
}

OutputText::Piece OutputText::release(bool is_end) {
  const auto stop = find_stop();
  Piece piece;
  piece.stopped = stop.has_value();
  std::size_t ready = stop ? stop_.is_kept ? stop->end : stop->begin : held_.size();
  if (!piece.stopped && !is_end && longest_stop_ > 1) {
    ready -= std::min(ready, longest_stop_ - 1);
    while (ready > 0 && (static_cast<unsigned char>(held_[ready]) & 0xc0) == 0x80)
      --ready;  // does not split a UTF-8 character
  }
  piece.text = held_.substr(0, ready);
  held_.erase(0, ready);
  unsearched_ -= std::min(unsearched_, ready);
  bytes_ += ready;
  return piece;
}

}  // namespace kvhive
