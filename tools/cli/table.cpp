#include "tools/cli/table.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace kvhive {
namespace {

/// In fewer columns words are not wrapped.
constexpr std::size_t kLeastWords = 24;

bool is_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell == "-");
}

}  // namespace

std::string Table::text(std::optional<std::size_t> width) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::size_t last = 0;  // where the last column begins
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) last += widths[i] + 2;
  const bool may_wrap = width && last + kLeastWords <= *width;
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_wrapped = may_wrap && i + 1 == widths.size() && row[i].size() > *width - last;
      if (is_wrapped) {
        const std::vector<std::string> lines = wrapped(row[i], *width - last);
        for (std::size_t l = 0; l + 1 < lines.size(); ++l)
          line += lines[l] + "\n" + std::string(last, ' ');
        line += lines.back();
        continue;
      }
      const std::string padding(widths[i] - row[i].size(), ' ');
      const std::string& below = rows_.size() > 1 && i < rows_[1].size() ? rows_[1][i] : row[i];
      line += is_number(below) ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string with_commas(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

}  // namespace kvhive
