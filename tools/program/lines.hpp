#pragma once
// Lines for people, as wide as they can read them.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvhive {

/// Columns of the terminal that standard output is; nothing if it is none.
std::optional<std::size_t> terminal_width();

/// The words of a text in lines of at most `width` columns. A longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t width);

}  // namespace kvhive
