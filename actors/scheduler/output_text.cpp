#include "actors/scheduler/output_text.hpp"

#include <algorithm>

namespace kvhive {

OutputText::OutputText(const Tokenizer* tokenizer, std::vector<std::string> stop)
    : stop_(std::move(stop)) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer);
  for (const std::string& text : stop_) longest_stop_ = std::max(longest_stop_, text.size());
}

OutputText::Piece OutputText::push(TokenId token) {
  if (!detokenizer_) return {};
  held_ += detokenizer_->push(token);
  return release(false);
}

std::string OutputText::finish() {
  if (!detokenizer_) return {};
  held_ += detokenizer_->finish();
  return release(true).text;
}

OutputText::Piece OutputText::release(bool is_end) {
  std::size_t first_stop = std::string::npos;
  for (const std::string& text : stop_) first_stop = std::min(first_stop, held_.find(text));
  Piece piece;
  piece.stopped = first_stop != std::string::npos;
  std::size_t ready = piece.stopped ? first_stop : held_.size();
  if (!piece.stopped && !is_end && longest_stop_ > 1) {
    ready -= std::min(ready, longest_stop_ - 1);
    while (ready > 0 && (static_cast<unsigned char>(held_[ready]) & 0xc0) == 0x80)
      --ready;  // does not split a UTF-8 character
  }
  piece.text = held_.substr(0, ready);
  held_.erase(0, ready);
  bytes_ += ready;
  return piece;
}

}  // namespace kvhive
