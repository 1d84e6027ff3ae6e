#include "tools/keeper/status.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "config/models/lora_modules.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

std::uint32_t restarts_of(const Child& child) { return child.starts - std::min(child.starts, 1u); }

Json serving(const Tables& tables, int socket, const Peer& peer, const char* state) {
  return {{"state", state}, {"slot", peer.slot}, {"channels", tables.channels.load_of(socket)}};
}

const char* state_of(const Tables& tables, const Child& child, int socket) {
  if (tables.channels.is_silent(socket)) return "not answering";
  if (child.wanted == Wanted::serving) return "serving";
  return child.is_drained ? "drained" : "draining";
}

std::int64_t in_ms(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

/// What the engine's last end has cost, if it has ended.
void add_last_end(const Tables& tables, std::uint32_t number, Json& engine) {
  const auto found = tables.last_ends.find(number);
  if (found == tables.last_ends.end()) return;
  const LastEnd& end = found->second;
  engine["last_end"] = {{"pid", end.pid},
                        {"unix_ms", in_ms(end.time.time_since_epoch())},
                        {"requests", end.requests ? Json(*end.requests) : Json()},
                        {"back_after_ms", end.back_after ? Json(end.back_after->count()) : Json()}};
}

Json own_engine(const Tables& tables, std::size_t number) {
  const Child& child = tables.engines[number];
  Json engine = {{"engine", number},
                 {"pid", child.pid},
                 {"restarts", restarts_of(child)},
                 {"model", tables.pool.models[child.model.value].name},
                 {"threads", child.place.threads},
                 {"processors", to_string(child.place.processors)},
                 {"state", child.is_running() ? "starting" : "down"}};
  for (const auto& [socket, peer] : tables.peers)
    if (peer.has_role(Role::engine) && peer.pid == child.pid)
      engine.update(serving(tables, socket, peer, state_of(tables, child, socket)));
  add_last_end(tables, static_cast<std::uint32_t>(number), engine);
  return engine;
}

Json engines(const Tables& tables) {
  Json all = Json::array();
  for (std::size_t i = 0; i < tables.engines.size(); ++i)
    if (tables.engines[i].is_running() || tables.engines[i].wanted != Wanted::removed)
      all.push_back(own_engine(tables, i));
  for (const auto& [socket, peer] : tables.peers) {
    if (!tables.is_guest(peer)) continue;
    Json guest = {{"engine", peer.engine},
                  {"pid", peer.pid},
                  {"restarts", 0},
                  {"model", tables.pool.models[peer.model.value].name}};
    guest.update(serving(tables, socket, peer, "guest"));
    add_last_end(tables, peer.engine, guest);
    all.push_back(guest);
  }
  return all;
}

/// By model, the names of its adapters.
std::vector<Json> adapters(const ResolvedOptions& options) {
  std::vector<Json> names(options.models.size(), Json::array());
  const auto modules = parse_lora_modules(options.asked.lora_modules, model_names(options.models));
  if (modules)  // check_options() has looked at it
    for (const LoraModule& module : *modules) names[module.model].push_back(module.name);
  return names;
}

Json models(const Tables& tables) {
  const std::vector<Json> adapters_of = adapters(tables.options);
  Json all = Json::array();
  for (std::size_t m = 0; m < tables.pool.models.size(); ++m) {
    const ModelFacts& facts = tables.pool.models[m];
    all.push_back({{"name", facts.name},
                   {"directory", std::filesystem::absolute(tables.options.models[m].directory)},
                   {"fingerprint", fmt::format("{:016x}", facts.fingerprint)},
                   {"max_model_len", facts.max_model_len},
                   {"block_size", facts.layout.block_size},
                   {"adapters", adapters_of[m]}});
  }
  return all;
}

Json domains(const Tables& tables, std::optional<DomainId> yours) {
  const auto& names = tables.domains.names();
  return {{"names", names}, {"yours", yours ? Json(names[yours->value]) : Json()}};
}

Json numbers_of(const Tables& tables, const std::set<EngineKey>& engines) {
  std::set<std::uint32_t> numbers;
  for (const EngineKey engine : engines) numbers.insert(tables.peers.at(engine).engine);
  return numbers;
}

Json clients(const Tables& tables) {
  Json all = Json::array();
  for (const auto& [socket, peer] : tables.peers) {
    if (!peer.has_role(Role::client)) continue;
    const auto channel = tables.channels.find(peer.channel);
    if (!channel) continue;
    all.push_back({{"pid", peer.pid},
                   {"uid", peer.uid},
                   {"channel", peer.channel},
                   {"channel_bytes", channel->bytes},
                   {"domain", tables.domains.names()[channel->owner.domain.value]},
                   {"model", tables.pool.models[channel->model.value].name},
                   {"engines", numbers_of(tables, channel->engines)}});
  }
  return all;
}

}  // namespace

std::string status_of(const Tables& tables, const std::string& socket,
                      const std::vector<std::string>& command, std::optional<DomainId> yours) {
  const MadePool& pool = tables.pool;
  Json status;
  status["keeper"] = {{"pid", getpid()},
                      {"front", tables.front},
                      {"state", tables.is_told ? "serving" : "starting"},
                      {"socket", socket},
                      {"repairs", tables.repairs.size()}};
  status["models"] = models(tables);
  status["model"] = status["models"][0];
  status["flags"] = to_flags(tables.options.asked);
  std::error_code unknown;
  status["started"] = {{"command", command},
                       {"directory", std::filesystem::current_path(unknown).string()}};
  status["steward"] = {{"pid", tables.steward.pid}, {"restarts", restarts_of(tables.steward)}};
  if (pool.gpu_memory.is_running()) status["gpu_memory"] = {{"pid", pool.gpu_memory.pid()}};
  status["engines"] = engines(tables);
  status["slots"] = to_json(tables.slot_owners());
  status["domains"] = domains(tables, yours);
  status["clients"] = clients(tables);
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvhive
