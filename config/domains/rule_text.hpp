#pragma once
// The pieces of an option's text. Lists of rules are written "NAME=ITEM,ITEM;NAME=ITEM", with
// spaces wherever they help.

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// The pieces between separators, without spaces around them. An empty text has no pieces.
std::vector<std::string> split_list(std::string_view text, char separator);

/// Reads a number that is the whole text. If it is none, or out of range, `target` stays.
template <class Number>
bool parse_number(Number& target, const std::string& text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = status == std::errc{} && end == text.data() + text.size();
  if (is_number) target = value;
  return is_number;
}

/// Names for an error text: "a, b, c".
template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

/// The error of a value in an option's text: `'value' remedy`.
tl::unexpected<Error> bad_value(const std::string& value, const std::string& remedy);

}  // namespace kvhive
