#pragma once
// The hive as JSON, for the page and for scripts. No process id, no user, no prompt is in it: who
// may read /metrics may read it, too.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tools/map/pool_map.hpp"
#include "tools/snapshot/rates.hpp"

namespace kvhive {

/// What the service says of itself. Its models may become others.
struct PageFacts {
  std::vector<std::string> models;  ///< the names that requests give, one at least
  std::string version;              ///< of the program
  bool wants_api_key = false;
};

/// What the service can see of the daemon.
enum class HiveSight : std::uint8_t {
  reading,  ///< its pool is read
  no_daemon,
  refused,  ///< there is one, and this process may not read its pool
};
constexpr std::array<std::string_view, 3> names_of(HiveSight) {
  return {"reading", "no_daemon", "refused"};
}

struct HiveMoment {
  HiveSight sight = HiveSight::no_daemon;
  std::string trouble;  ///< why the pool is not read, in a line
  std::optional<Snapshot> snapshot;
  Rates rates;
  std::vector<PoolMap> maps;  ///< of the same cells, in the order of MapBy
};

/// To three digits, as JSON has rates and shares.
inline double rounded(double value) { return std::round(value * 1000) / 1000; }

std::string hive_json(const HiveMoment& moment, const PageFacts& facts);

/// A tier's cells in short. Cells are separated by a space: `2` = all blocks of category 2, `2*7` =
/// seven such cells, `2:5,0:3` = five blocks of category 2 and three of category 0.
std::string cells_text(const TierMap& tier);

}  // namespace kvhive
