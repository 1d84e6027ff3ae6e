// kvhive pool procs: which processes there are, in what state, and what each of them holds and has
// counted.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "ipc/pidfd.hpp"
#include "pool/care/pool_report.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/table.hpp"

#include "tools/snapshot/snapshot.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

Json to_json(const ProcessReport& p) {
  Json json = {{"slot", p.slot},
               {"pid", p.pid},
               {"engine", p.index},
               {"started", p.started},
               {"held_device_blocks", p.held_blocks[0]},
               {"held_host_blocks", p.held_blocks[1]}};
  add_counters(json, p.counted);
  add_histograms(json, p.observed);
  return json;
}

std::string age(std::int64_t started) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count() - started;
  return std::to_string(std::max<std::int64_t>(seconds, 0)) + " s";
}

/// The keeper's account of the processes; without a keeper, what the pool itself says.
Expected<Json> account_of(const Inspector& inspector, const PoolReport& report) {
  if (inspector.has_keeper()) return inspector.status();
  Json status = {{"keeper", {{"pid", inspector.keeper()}, {"state", "not answering"}}},
                 {"engines", Json::array()},
                 {"clients", Json::array()}};
  if (inspector.daemon() != 0 && inspector.daemon() != inspector.keeper())
    status["keeper"]["front"] = inspector.daemon();
  for (const ProcessReport& p : report.processes)
    status["engines"].push_back(
        {{"engine", p.index}, {"pid", p.pid}, {"slot", p.slot}, {"state", "unknown"}});
  return status;
}

/// By the slot, not the pid: a guest in a PID namespace of its own has another number there, which
/// the keeper does not know.
const ProcessReport* find_process(const PoolReport& report, const Json& slot) {
  if (!slot.is_number()) return nullptr;
  const auto found = std::find_if(report.processes.begin(), report.processes.end(),
                                  [&](const ProcessReport& p) { return slot == p.slot; });
  return found != report.processes.end() ? &*found : nullptr;
}

class ProcessTable {
 public:
  /// \param has_models  there are several: each engine is shown with its own
  explicit ProcessTable(bool has_models) : has_models_(has_models) {}

  /// A process of which the pool knows nothing.
  void add(const std::string& name, const Json& process) {
    std::vector<std::string> row = names(name, process);
    row.resize(kColumns, "-");
    table_.add(std::move(row));
  }
  /// An engine; `attached`: what the pool knows of it, nothing if it is down or starting.
  void add_engine(const Json& engine, const ProcessReport* attached) {
    std::string name = "engine " + std::to_string(engine["engine"].get<int>());
    if (has_models_ && engine.contains("model"))
      name += " of " + engine["model"].get<std::string>();
    if (attached == nullptr) return add(name, engine);
    std::vector<std::string> row = names(name, engine);
    const CounterValues& counted = attached->counted;
    row.insert(row.end(), {std::to_string(attached->slot), age(attached->started)});
    for (const std::uint64_t value :
         {counted["running"], counted["waiting"], attached->held_blocks[0],
          counted["prompt_tokens"], counted["cached_tokens"], counted["generated_tokens"],
          counted["preemptions_recompute"] + counted["preemptions_swap"]})
      row.push_back(with_commas(value));
    table_.add(std::move(row));
  }
  std::string text() const { return table_.text(); }

 private:
  static constexpr std::size_t kColumns = 13;

  static std::vector<std::string> names(const std::string& name, const Json& process) {
    const int pid = process.value("pid", 0);
    const bool is_known = process.contains("restarts");
    return {name, pid != 0 ? std::to_string(pid) : "-", process.value("state", std::string("-")),
            is_known ? std::to_string(process["restarts"].get<std::uint64_t>()) : "-"};
  }

  bool has_models_;
  Table table_{{"process", "pid", "state", "restarts", "slot", "up", "running", "waiting", "held",
                "prompt", "cached", "generated", "preempted"}};
};

/// "no engine yet", "engine 0", "engines 0, 1, 2".
std::string name_engines(const Json& numbers) {
  if (numbers.empty()) return "no engine yet";
  std::string text = numbers.size() == 1 ? "engine " : "engines ";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i].get<int>());
  return text;
}

/// The keeper's parent. Both are called kvhived, and it answers nobody: the kernel says its state.
Json front_of(const Json& keeper) {
  const pid_t pid = keeper["front"];
  return {{"pid", pid}, {"state", is_stopped(pid) ? "stopped" : "running"}};
}

std::string name_client(const Json& client) {
  return "client of " + name_engines(client["engines"]) + " in domain " +
         client["domain"].get<std::string>();
}

std::string process_table(const Json& status, const PoolReport& report) {
  ProcessTable table(report.geometry.model_count > 1);
  table.add("keeper", status["keeper"]);
  if (status["keeper"].contains("front")) table.add("front", front_of(status["keeper"]));
  if (status.contains("steward")) table.add("steward", status["steward"]);
  if (status.contains("gpu_memory")) table.add("GPU memory", status["gpu_memory"]);
  for (const Json& engine : status["engines"])
    table.add_engine(engine, find_process(report, engine.value("slot", Json())));
  for (const Json& slot : status.value("slots", Json::array()))
    if (slot["use"] == "unswept")
      table.add("ended, in slot " + std::to_string(slot["slot"].get<int>()),
                {{"state", "waits for the steward"}});
  for (const Json& client : status["clients"]) table.add(name_client(client), client);
  return table.text();
}

Expected<void> procs(const CommonFlags& flags) {
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::read_pool);
  if (!inspector) return forward_error(inspector);
  const PoolReport report = report_pool(inspector->memory());
  auto status = account_of(*inspector, report);
  if (!status) return forward_error(status);
  for (Json& engine : (*status)["engines"]) engine["state"] = engine_state(*status, engine);
  if (flags.output() == Format::human) {
    std::printf("%s", process_table(*status, report).c_str());
    return {};
  }
  (*status)["processes"] = Json::array();
  for (const ProcessReport& process : report.processes)
    (*status)["processes"].push_back(to_json(process));
  print(*status);
  return {};
}

}  // namespace

void add_pool_procs(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = pool.add_subcommand(
      "procs",
      "which processes there are, in what state, what they hold, and in which domain clients are");
  flags->add_to(*command);
  command->callback([flags, &exit_code] {
    if (auto done = procs(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
