#pragma once
// The last minutes of a hive, second by second, and the engines that ended in them.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pool/care/pool_report.hpp"

namespace kvhive {

/// What the keeper says of an engine's last end.
struct ToldEnd {
  std::uint32_t pid = 0;
  std::int64_t unix_ms = 0;               ///< when it noticed
  std::optional<std::uint64_t> requests;  ///< none = the engine has not been swept up yet
  std::optional<double> seconds_until_back;
};

/// What is read of the pool in a second.
struct HiveReading {
  double seconds = 0;          ///< when, on a monotonic clock
  std::int64_t unix_time = 0;  ///< the same, in seconds since 1970
  std::string epoch;           ///< of the pool; empty = no pool can be read
  Statistics statistics;
  std::array<TierReport, kTiers> tiers;
  std::map<std::uint32_t, ToldEnd> told_ends{};  ///< by engine; perhaps seconds old
};

/// One second. Without a pool only the time is known.
struct HiveSecond {
  std::uint64_t number = 0;  ///< from 1 on, one more each second
  std::int64_t unix_time = 0;
  bool is_known = false;
  double prompt_rate = 0, generated_rate = 0;  ///< tokens in a second
  std::optional<double> hit_share;             ///< cached of prompt tokens; none = no prompts
  std::optional<double> first_token_ms;        ///< mean of this second's first tokens
  std::uint64_t running = 0, waiting = 0;
  double used_share = 0, cached_share = 0;  ///< of the device tier's blocks
};

/// An engine's process that is no longer attached to the pool: killed, or stopped on purpose.
struct EngineEnd {
  std::uint32_t engine = 0;
  std::uint32_t pid = 0;
  std::int64_t unix_time = 0;                ///< when it was first seen to be gone
  std::uint64_t running = 0, waiting = 0;    ///< its requests a second before
  std::optional<double> seconds_until_back;  ///< none = it is not back yet
  std::optional<std::uint64_t> requests;     ///< that it left to others; none = not told yet
};

class History {
 public:
  static constexpr std::size_t kSeconds = 300;
  static constexpr std::size_t kEnds = 20;

  void add(HiveReading reading);
  const std::deque<HiveSecond>& seconds() const { return seconds_; }
  /// The latest last.
  const std::deque<EngineEnd>& ends() const { return ends_; }
  /// JSON: the seconds behind the one with this number. tools/serve/page/README.md has the form.
  std::string json(std::uint64_t after) const;

 private:
  struct Away {
    std::size_t end = 0;  ///< how many ends there were before it
    double since = 0;
  };
  void compare_engines(const HiveReading& reading);
  void believe(const ToldEnd& told);

  std::deque<HiveSecond> seconds_;
  std::deque<EngineEnd> ends_;
  std::uint64_t ends_dropped_ = 0;
  std::map<std::uint32_t, Away> away_;  ///< engines that have not come back
  HiveReading last_;
};

}  // namespace kvhive
