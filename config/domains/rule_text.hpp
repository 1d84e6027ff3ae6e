#pragma once
// Options that are lists of rules are written "NAME=ITEM,ITEM;NAME=ITEM", with spaces wherever they
// help.

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// The pieces between separators, without spaces around them. An empty text has no pieces.
std::vector<std::string> split_list(std::string_view text, char separator);

/// The error of a value in such a text: `'value' remedy`.
tl::unexpected<Error> bad_rule(const std::string& value, const std::string& remedy);

}  // namespace kvhive
