#pragma once
// Columns for people: left-aligned text, right-aligned numbers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/program/lines.hpp"

namespace kvhive {

class Table {
 public:
  Table() = default;  ///< without a header
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// On a terminal the last column is wrapped, if it is of words.
  std::string text() const { return text(terminal_width()); }
  /// \param width  columns; nothing = any
  std::string text(std::optional<std::size_t> width) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "12,345"
std::string with_commas(std::uint64_t number);
/// "12.3 %"; "-" of nothing
std::string percent(std::uint64_t part, std::uint64_t whole);

}  // namespace kvhive
