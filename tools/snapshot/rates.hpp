#pragma once
// What happened between two snapshots, in a second.

#include <map>
#include <optional>

#include "tools/snapshot/snapshot.hpp"

namespace kvhive {

struct Rate {
  double prompt_tokens = 0, generated_tokens = 0;  ///< in a second
  std::optional<double> hit_share;                 ///< cached of prompt tokens; none = no prompts
};

struct Rates {
  std::optional<Rate> hive;
  std::map<std::uint32_t, Rate> engines;  ///< by number
};

/// Nothing of another pool, of an engine that was started in between, or of counters that went
/// back.
Rates rates_between(const Snapshot& before, const Snapshot& now);

}  // namespace kvhive
