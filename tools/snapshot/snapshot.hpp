#pragma once
// The hive at one moment. The pool's part is read from the mapping; names and clients are what
// kvhived said last, and may be older.

#include <sys/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/map/pool_map.hpp"

namespace kvhive {

struct EngineRow {
  std::uint32_t number = 0;
  pid_t pid = 0;  ///< 0 = none
  std::string state;
  std::string model;    ///< where there are several
  bool is_well = true;  ///< false: marked, since it does not serve
  std::optional<std::uint64_t> restarts;
  std::optional<std::uint32_t> slot;  ///< attached to the pool
  std::uint64_t age_seconds = 0;
  std::uint64_t held_blocks = 0;  ///< in both tiers
  CounterValues counted;          ///< since it signed in
};

struct DomainRow {
  std::string name;
  DomainReport blocks;
  std::uint64_t clients = 0;
  std::uint64_t channel_bytes = 0;
};

struct ClientRow {
  pid_t pid = 0;
  std::uint32_t uid = 0;
  std::string program;  ///< empty if not visible from here
  std::string domain;
  std::string engines;  ///< "0,1"
  std::uint64_t channel_bytes = 0;
};

/// What is known of kvhived.
enum class DaemonState : std::uint8_t {
  answering,
  silent,  ///< stopped or overloaded: names and clients are old, the pool is not
  ended,   ///< all is old; top waits for the next daemon
};

struct DaemonView {
  DaemonState state = DaemonState::answering;
  std::string trouble;  ///< one line, if it does not answer
  std::string model;
  pid_t keeper = 0;  ///< 0 = not visible
  std::uint64_t age_seconds = 0;
  std::optional<double> told_ago;  ///< seconds since its last answer; none = it gave none
};

struct Snapshot {
  double seconds = 0;  ///< when it was taken, on a monotonic clock
  DaemonView daemon;
  PoolReport pool;
  std::vector<EngineRow> engines;
  std::vector<DomainRow> domains;
  std::vector<ClientRow> clients;
  MapNames names;       ///< what maps of the pool call owners and domains
  SortedBlocks blocks;  ///< for one map; empty until somebody sorts them (sort_blocks())
};

/// What the kernel says of a process that the pool knows.
enum class ProcessState : std::uint8_t {
  runs,  ///< or it cannot be seen from here
  stopped,
  ended,  ///< and the steward has not swept it up yet
};
/// By slot.
/// \param told  kvhived's status, which tells whether its process ids mean something here
std::map<std::uint32_t, ProcessState> states_of(const nlohmann::json& told,
                                                std::span<const ProcessReport> processes);
/// An engine's state as kvhived told it, unless its process is stopped or has ended.
std::string engine_state(const nlohmann::json& told, const nlohmann::json& engine);

/// Reads the pool and the processes. Waits for none of them.
/// \param told  kvhived's status (ipc/questions.hpp), null if it gave none. What is missing in it
///              is left out.
Snapshot take_snapshot(const PoolMemory& memory, const nlohmann::json& told, DaemonView daemon,
                       double now_seconds);

}  // namespace kvhive
