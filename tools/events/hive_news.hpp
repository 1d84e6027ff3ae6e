#pragma once
// What happened in the hive between two snapshots, as JSON objects: one for each event, which
// "event" names. The first snapshot is told as if everything had just come, so that a reader needs
// no other source.

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tools/snapshot/snapshot.hpp"

namespace kvhive {

class HiveNews {
 public:
  using Json = nlohmann::ordered_json;

  /// What is new in `now`: of the daemon, of engines, of domains, of clients, of blocks.
  [[nodiscard]] std::vector<Json> since_last(const Snapshot& now);

 private:
  struct Engine {
    EngineRow row;
    std::optional<double> lost;  ///< when it was first seen not to serve; none = it serves
  };
  /// A process may have several channels.
  using ClientKey = std::tuple<pid_t, std::uint32_t, std::string>;

  void tell(const char* event, Json details);
  void tell_of_daemon(const Snapshot& now);
  void forget();
  void tell_of_engines(const Snapshot& now);
  void tell_of_process(Engine& known, const EngineRow& row, double seconds);
  void tell_of_state(Engine& known, const EngineRow& row, double seconds);
  void tell_of_domains(const Snapshot& now);
  void tell_of_clients(const Snapshot& now);
  void tell_of_blocks(const Snapshot& now);

  std::optional<DaemonView> daemon_;
  PoolReport pool_;
  std::map<std::uint32_t, Engine> engines_;
  std::map<std::string, bool> domains_;  ///< those that have been told of
  std::map<ClientKey, ClientRow> clients_;
  std::vector<Json> news_;
};

}  // namespace kvhive
