#include "base/byte_size.hpp"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

namespace kvhive {
namespace {

/// The factor of a unit such as "", "b", "k", "kb", "kib"; nothing for anything else.
std::optional<double> factor_of(std::string unit) {
  for (char& letter : unit)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (unit.empty() || unit == "b") return 1.0;
  constexpr std::string_view kLetters = "kmgt";
  const auto power = kLetters.find(unit.front());
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib"))
    return std::nullopt;
  return std::pow(1024.0, static_cast<double>(power + 1));
}

}  // namespace

Expected<std::size_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char* letter = end; letter != text.data() + text.size(); ++letter)
    if (*letter != ' ') unit += *letter;
  const auto factor = factor_of(unit);
  if (status != std::errc{} || !factor || !(number >= 0) || number * *factor >= 0x1p62)
    return failure(
        Errc::bad_argument,
        "'" + std::string(text) + "' is not a size; write 512M, 4GiB or a number of bytes");
  return static_cast<std::size_t>(number * *factor);
}

std::string format_bytes(std::size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace kvhive
