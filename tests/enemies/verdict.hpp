#pragma once
// The table at the end: what was promised, what was seen, and whether it is so.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace kvhive::testing {

class Verdict {
 public:
  void add(const std::string& promise, const std::string& seen, bool is_kept) {
    rows_.push_back({promise, seen, is_kept});
  }
  bool is_good() const {
    for (const Row& row : rows_)
      if (!row.is_kept) return false;
    return true;
  }
  void print() const {
    std::size_t width = 0;
    for (const Row& row : rows_) width = std::max(width, row.promise.size());
    for (const Row& row : rows_)
      std::printf("  %-6s %-*s  %s\n", row.is_kept ? "kept" : "BROKEN", static_cast<int>(width),
                  row.promise.c_str(), row.seen.c_str());
  }

 private:
  struct Row {
    std::string promise, seen;
    bool is_kept;
  };
  std::vector<Row> rows_;
};

}  // namespace kvhive::testing
