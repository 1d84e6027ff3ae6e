#include "config/choices.hpp"

#include <numeric>
#include <utility>
#include <vector>

namespace kvhive {
namespace {

/// Levenshtein's: letters to insert, remove or replace.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_name(std::string_view wanted, std::span<const std::string_view> names) {
  std::string_view nearest;
  for (const std::string_view name : names)
    if (nearest.empty() || edit_distance(name, wanted) < edit_distance(nearest, wanted))
      nearest = name;
  const bool is_alike =
      edit_distance(nearest, wanted) * 2 < std::max(nearest.size(), wanted.size());
  return is_alike ? nearest : std::string_view();
}

}  // namespace kvhive
