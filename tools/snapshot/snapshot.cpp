#include "tools/snapshot/snapshot.hpp"

#include <algorithm>
#include <map>

#include "tools/snapshot/process_facts.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

const Json& list_in(const Json& object, const char* name) {
  static const Json kNone = Json::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : kNone;
}

const ProcessReport* process_in_slot(const PoolReport& pool, std::optional<std::uint32_t> slot) {
  if (!slot) return nullptr;
  const auto found = std::find_if(pool.processes.begin(), pool.processes.end(),
                                  [&](const ProcessReport& p) { return p.slot == *slot; });
  return found != pool.processes.end() ? &*found : nullptr;
}

/// Process ids that kvhived tells mean something here only in its own PID namespace: there the
/// keeper's id is the keeper's. A status that names no keeper is believed.
bool are_pids_ours(const Json& told) {
  const auto keeper = told.find("keeper");
  if (keeper == told.end() || !keeper->is_object() || !keeper->contains("pid")) return true;
  const auto facts = facts_of(keeper->value("pid", 0));
  return facts && facts->program.starts_with("kvhived");
}

/// What the pool and the kernel say of an engine, over what kvhived said.
void add_facts(EngineRow& engine, const PoolReport& pool, bool are_pids_ours) {
  if (const ProcessReport* process = process_in_slot(pool, engine.slot)) {
    engine.counted = process->counted;
    engine.held_blocks = process->held_blocks[0] + process->held_blocks[1];
  }
  if (engine.pid == 0 || engine.state == "guest" || !are_pids_ours) return;
  if (const auto facts = facts_of(engine.pid); facts && !facts->has_ended())
    engine.age_seconds = facts->age_seconds;
}

EngineRow engine_told(const Json& told) {
  EngineRow engine;
  engine.number = told.value("engine", 0u);
  engine.pid = told.value("pid", 0);
  engine.state = told.value("state", "unknown");
  engine.model = told.value("model", "");
  if (told.contains("restarts")) engine.restarts = told.value("restarts", std::uint64_t{0});
  if (told.contains("slot")) engine.slot = told.value("slot", 0u);
  return engine;
}

/// By what kvhived says; without it, by the pool's slots.
std::vector<EngineRow> engines_of(const Json& told, const PoolReport& pool) {
  std::vector<EngineRow> engines;
  for (const Json& engine : list_in(told, "engines")) engines.push_back(engine_told(engine));
  if (engines.empty())
    for (const ProcessReport& p : pool.processes) {
      EngineRow engine;
      engine.number = p.index;
      engine.pid = static_cast<pid_t>(p.pid);
      engine.state = "unknown";
      engine.slot = p.slot;
      engines.push_back(engine);
    }
  const bool has_our_pids = are_pids_ours(told);
  for (EngineRow& engine : engines) {
    engine.state = engine_state(told, {{"pid", engine.pid}, {"state", engine.state}});
    add_facts(engine, pool, has_our_pids);
    engine.is_well =
        engine.state == "serving" || engine.state == "guest" || engine.state == "unknown";
  }
  return engines;
}

std::vector<ClientRow> clients_of(const Json& told) {
  std::vector<ClientRow> clients;
  for (const Json& client : list_in(told, "clients")) {
    ClientRow row;
    row.pid = client.value("pid", 0);
    row.uid = client.value("uid", 0u);
    row.domain = client.value("domain", "");
    row.channel_bytes = client.value("channel_bytes", std::uint64_t{0});
    for (const Json& engine : list_in(client, "engines"))
      row.engines += (row.engines.empty() ? "" : ",") + engine.dump();
    if (const auto facts = facts_of(row.pid)) row.program = facts->program;
    clients.push_back(row);
  }
  return clients;
}

std::vector<std::string> domain_names(const Json& told) {
  std::vector<std::string> names;
  const auto domains = told.find("domains");
  if (domains == told.end()) return names;
  for (const Json& name : list_in(*domains, "names"))
    names.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  return names;
}

/// Those that have blocks, limits or clients.
std::vector<DomainRow> domains_of(const PoolMemory& memory, const std::vector<std::string>& names,
                                  const std::vector<ClientRow>& clients) {
  std::vector<DomainRow> domains;
  for (const auto& [domain, blocks] : report_domains(memory))
    domains.push_back(
        {domain.value < names.size() ? names[domain.value] : std::to_string(domain.value), blocks,
         0, 0});
  for (const ClientRow& client : clients) {
    auto found = std::find_if(domains.begin(), domains.end(),
                              [&](const DomainRow& row) { return row.name == client.domain; });
    if (found == domains.end())
      found = domains.insert(domains.end(), DomainRow{client.domain, {}, 0, 0});
    ++found->clients;
    found->channel_bytes += client.channel_bytes;
  }
  return domains;
}

ProcessState state_of(pid_t pid) {
  const auto facts = facts_of(pid);
  if (!facts || facts->has_ended()) return ProcessState::ended;
  return facts->is_stopped() ? ProcessState::stopped : ProcessState::runs;
}

}  // namespace

std::map<std::uint32_t, ProcessState> states_of(const Json& told,
                                                std::span<const ProcessReport> processes) {
  std::map<std::uint32_t, ProcessState> states;
  const bool is_visible = told.is_object() && are_pids_ours(told);
  for (const ProcessReport& process : processes)
    states[process.slot] =
        is_visible ? state_of(static_cast<pid_t>(process.pid)) : ProcessState::runs;
  // A guest's pid is that of another namespace, perhaps.
  for (const Json& engine : list_in(told, "engines"))
    if (engine.value("state", "") == "guest" && engine.contains("slot"))
      states[engine.value("slot", 0u)] = ProcessState::runs;
  return states;
}

std::string engine_state(const Json& told, const Json& engine) {
  const std::string state = engine.value("state", "unknown");
  const pid_t pid = engine.value("pid", 0);
  if (pid == 0 || state == "guest" || !are_pids_ours(told)) return state;
  switch (state_of(pid)) {
    case ProcessState::runs: break;
    case ProcessState::stopped: return "stopped";
    case ProcessState::ended: return "ended";
  }
  return state;
}

Snapshot take_snapshot(const PoolMemory& memory, const Json& told, DaemonView daemon,
                       double now_seconds) {
  Snapshot snapshot;
  snapshot.seconds = now_seconds;
  snapshot.daemon = std::move(daemon);
  const auto facts = facts_of(snapshot.daemon.keeper);
  snapshot.daemon.age_seconds = facts ? facts->age_seconds : 0;
  snapshot.pool = report_pool(memory);
  const std::vector<std::string> names = domain_names(told);
  snapshot.engines = engines_of(told, snapshot.pool);
  if (snapshot.daemon.state == DaemonState::ended) {  // the pool is not the last thing that changes
    snapshot.seconds -= snapshot.daemon.told_ago.value_or(0);
    for (EngineRow& engine : snapshot.engines) engine.state = "ended", engine.is_well = false;
  }
  snapshot.clients = clients_of(told);
  snapshot.domains = domains_of(memory, names, snapshot.clients);
  snapshot.names = map_names(snapshot.pool, names);
  return snapshot;
}

}  // namespace kvhive
