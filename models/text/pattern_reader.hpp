#pragma once
// Reads a regular expression one code point at a time and keeps the first reason to refuse it.

#include <algorithm>
#include <string>
#include <string_view>

#include "base/expected.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {

/// After refuse() the reader is at its end, so that every loop over it ends. What was read until
/// then is of no use: the caller asks for the error last.
class PatternReader {
 public:
  /// \param pattern  valid UTF-8; must outlive this
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  bool at_end() const { return at_ == pattern_.size(); }
  std::size_t offset() const { return at_; }
  void go_back_to(std::size_t offset) {
    if (!is_refused()) at_ = offset;
  }
  bool is_next(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  /// Consumes `text` if it comes next.
  bool take(std::string_view text) {
    if (!is_next(text)) return false;
    at_ += text.size();
    return true;
  }
  /// Consumes one code point; refuses the pattern if there is none.
  char32_t take() {
    if (at_end()) {
      refuse(at_, "the pattern ends too early");
      return 0;
    }
    const auto head = utf8_head(pattern_.substr(at_));
    at_ += head.bytes;
    return head.code_point;
  }
  /// Consumes everything up to `end` and `end` itself. Refuses the pattern if `end` does not come.
  std::string_view take_until(std::string_view end) {
    const auto found = pattern_.find(end, at_);
    if (found == std::string_view::npos) {
      refuse(at_, "no " + std::string(end) + " follows");
      return {};
    }
    const auto text = pattern_.substr(at_, found - at_);
    at_ = found + end.size();
    return text;
  }

  /// Consumes up to `most` of the characters in `allowed`, which are ASCII.
  std::string_view take_any_of(std::string_view allowed, std::size_t most) {
    const auto rest = pattern_.substr(at_, most);
    const auto text = rest.substr(0, rest.find_first_not_of(allowed));
    at_ += text.size();
    return text;
  }

  /// \param from  offset of the construct that is refused
  void refuse(std::size_t from, const std::string& reason) {
    if (refusal_.empty()) {
      const auto end = std::max(at_, from);
      refusal_ = "regular expression " + std::string(pattern_) + ": " +
                 std::string(pattern_.substr(from, end - from)) + " at offset " +
                 std::to_string(from) + ": " + reason;
    }
    at_ = pattern_.size();
  }
  bool is_refused() const { return !refusal_.empty(); }
  /// \pre is_refused()
  tl::unexpected<Error> error() const { return failure(Errc::unsupported, refusal_); }

 private:
  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string refusal_;
};

}  // namespace kvhive
