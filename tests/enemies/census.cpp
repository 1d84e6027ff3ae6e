#include "tests/enemies/census.hpp"

#include <algorithm>

#include "tests/tools/footprint.hpp"

namespace kvhive::testing {

Census Census::of(const Daemon& daemon, const Json& status) {
  Census census;
  census.keeper_bytes = memory_of(daemon.pid(), "VmRSS");
  census.keeper_descriptors = descriptors_of(daemon.pid());
  for (const Json& engine : status["engines"]) {
    const pid_t pid = engine["pid"];
    census.engine_bytes = std::max(census.engine_bytes, memory_of(pid, "RssAnon"));
    census.engine_descriptors = std::max(census.engine_descriptors, descriptors_of(pid));
  }
  std::map<uid_t, std::size_t> of_user;
  for (const Json& client : status["clients"]) {
    const std::size_t bytes = client["channel_bytes"];
    census.channel_bytes += bytes;
    ++census.connections;
    const uid_t user = client["uid"];
    if (user != geteuid()) of_user[user] += bytes;
  }
  for (const auto& [user, bytes] : of_user)
    census.channel_bytes_of_user = std::max(census.channel_bytes_of_user, bytes);
  return census;
}

void Census::widen(const Census& other) {
  const auto more = [](std::size_t& mine, std::size_t theirs) { mine = std::max(mine, theirs); };
  more(keeper_bytes, other.keeper_bytes);
  more(keeper_descriptors, other.keeper_descriptors);
  more(engine_bytes, other.engine_bytes);
  more(engine_descriptors, other.engine_descriptors);
  more(channel_bytes, other.channel_bytes);
  more(channel_bytes_of_user, other.channel_bytes_of_user);
  more(connections, other.connections);
}

Processes Processes::in(const Json& status) {
  Processes processes;
  const auto add = [&](const Json& process) {
    processes.all.push_back(process["pid"]);
    processes.restarts += process["restarts"].get<int>();
  };
  add(status["steward"]);
  for (const Json& engine : status["engines"]) add(engine);
  return processes;
}

}  // namespace kvhive::testing
