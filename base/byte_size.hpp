#pragma once
// Parses and prints sizes in bytes as users write them: "512M", "4 GiB", "30gb", "1073741824".

#include <cstddef>
#include <string>
#include <string_view>

#include "base/expected.hpp"

namespace kvhive {

/// Parses a size with an optional unit: k, m, g or t, with or without "b" or "ib". Units are always
/// powers of 1024 (like vLLM's GiB).
[[nodiscard]] Expected<std::size_t> parse_bytes(std::string_view text);

/// Prints a size: "1.50 GiB", "512 B".
std::string format_bytes(std::size_t bytes);

}  // namespace kvhive
