#include "tools/keeper/supervisor.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <utility>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "config/machine/machine_memory.hpp"
#include "ipc/pidfd.hpp"
#include "tools/keeper/succession/orphan_ends.hpp"

namespace kvhive {
namespace {

/// A child that ran for less time than this died young, and is started again only after a delay.
constexpr std::chrono::seconds kYoung{2};

/// The last line that a process has written to the log file; empty = none.
std::string last_log_line(const std::string& path, const std::string& name, pid_t pid) {
  const std::string mark = "[" + name + " " + std::to_string(pid) + "] ";
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (const auto found = line.find(mark); found != std::string::npos)
      last = line.substr(found + mark.size());
  return last;
}

/// The last log line of a child that could not start, and where the user finds the rest.
std::string message_of(const std::string& log_file, const Child& child, pid_t pid) {
  if (log_file.empty()) return "its message is above";
  const std::string line = last_log_line(log_file, child.name, pid);
  return (line.empty() ? "" : line + "; ") + "its log is in " + log_file;
}

/// What the user should do after a child could not start.
std::string remedy_for(const std::string& end, std::string remedy) {
  if (end != "signal " + std::to_string(SIGKILL)) return remedy;
  const MachineMemory memory = machine_memory();
  remedy += "; if there is none, the kernel wanted memory: ";
  remedy += memory.bound + " has " + format_bytes(memory.available) +
            " available; lower kv-cache-memory-bytes, or raise that limit";
  return remedy;
}

/// Delay before the next start of a child: 100 ms after its first early death, doubled with each
/// further one, at most 5 s.
std::chrono::milliseconds delay_after(std::uint32_t young_deaths) {
  if (young_deaths == 0) return std::chrono::milliseconds(1);
  return std::chrono::milliseconds(std::min(5000u, 50u << std::min(young_deaths, 7u)));
}

std::vector<std::string> flags_of_engine(const Tables& tables, std::size_t number) {
  std::vector<std::string> flags = to_flags(tables.options, tables.engines[number].model);
  flags.insert(flags.end(),
               {"--index", std::to_string(number), "--keeper", std::to_string(tables.front)});
  return flags;
}

/// What an operator has ordered holds for the child's next process, too; to restart it is done.
void carry_over_orders(Child& child) {
  child.is_drained = false;
  child.is_drain_due = child.wanted == Wanted::drained;
  if (child.wanted != Wanted::restarted) return;
  child.wanted = Wanted::serving;
  child.last_start = {};  // that it ended young says nothing
}

/// A killed process can stay for seconds, if the kernel keeps it waiting (for a disk, a driver, a
/// page that a client had moved).
constexpr std::chrono::milliseconds kPatienceWithKilledChildren{500};

}  // namespace

void Supervisor::start_steward(std::vector<std::string> flags, int lifeline) {
  describe_steward(std::move(flags), lifeline);
  start(tables_.steward);
}

void Supervisor::describe_steward(std::vector<std::string> flags, int lifeline) {
  tables_.steward.name = "steward";
  tables_.steward.program = "kvhive-steward";
  tables_.steward.flags = std::move(flags);
  tables_.steward.waits_for_go = true;
  tables_.steward.inherits = {lifeline};
}

void Supervisor::resume() {
  for (Child* child : all())
    if (child->is_running())
      watch(*child);
    else if (child->wanted != Wanted::removed)
      restart_later(*child);
}

std::vector<Child*> Supervisor::all() {
  std::vector<Child*> children = {&tables_.steward};
  for (Child& engine : tables_.engines) children.push_back(&engine);
  return children;
}

bool Supervisor::let_children_go() {
  bool were_waiting = false;
  for (Child* child : all()) {
    if (!child->gate) continue;
    let_go(*child);
    were_waiting = true;
  }
  return were_waiting;
}

void Supervisor::describe_again(std::vector<std::string> flags_of_steward, int lifeline) {
  describe_steward(std::move(flags_of_steward), lifeline);
  for (std::size_t i = 0; i < tables_.engines.size(); ++i)
    tables_.engines[i].flags = flags_of_engine(tables_, i);
}

/// The models of the engines that the options ask for, by the engines' numbers.
static std::vector<ModelId> wanted_engines(const ResolvedOptions& options) {
  std::vector<ModelId> models;
  for (std::size_t m = 0; m < options.models.size(); ++m)
    models.insert(models.end(), options.models[m].engines, ModelId{static_cast<std::uint8_t>(m)});
  return models;
}

void make_engine_entries(Tables& tables, std::size_t count) {
  const std::vector<ModelId> wanted = wanted_engines(tables.options);
  const std::vector<EnginePlace>& places = tables.options.places;
  tables.engines.reserve(kMaxProcesses);
  for (std::size_t i = tables.engines.size(); i < count; ++i) {
    Child& engine = tables.engines.emplace_back();
    engine.wanted = i < wanted.size() ? Wanted::serving : Wanted::removed;
    if (i < wanted.size()) engine.model = wanted[i];
    engine.name = "engine " + std::to_string(i);
    engine.program = "kvhive-engine";
    engine.waits_for_go = true;
    engine.flags = flags_of_engine(tables, i);
    // One that is added has no processors of its own: those that have stay where they are.
    engine.place = i < places.size() ? places[i] : EnginePlace{places.front().threads, {}};
  }
}

void set_model(Tables& tables, std::size_t number, ModelId model) {
  tables.engines[number].model = model;
  tables.engines[number].flags = flags_of_engine(tables, number);
}

void Supervisor::start_engines() {
  make_engine_entries(tables_, wanted_engines(tables_.options).size());
  for (Child& engine : tables_.engines)
    if (!engine.is_running() && engine.starts == 0) start(engine);
}

void Supervisor::start(Child& child) {
  if (child.is_running() || child.wanted == Wanted::removed) return;  // ordered meanwhile
  if (auto started = start_child(child); !started) {
    // Before the daemon is ready, the user waits for it; afterwards it goes on without this child.
    if (!tables_.is_ready) return fail(started.error());
    spdlog::error("{}: start {} failed: {}", child.name, child.starts, started.error().text);
    return restart_later(child);
  }
  const ProcessorList& own = child.place.processors;
  spdlog::info("{} started: pid {}, start {}{}", child.name, child.pid, child.starts,
               own.empty() ? "" : ", on processors " + to_string(own));
  watch(child);
}

void Supervisor::watch(Child& child) {
  loop_.watch(child.pidfd.get(), [this, &child] { on_end(child); });
}

void Supervisor::on_end(Child& child) {
  loop_.unwatch(child.pidfd.get());
  if (is_orphan(child.pid) && !events_.end_of_orphan(child.pid)) return wait_for_the_front(child);
  has_ended(child);
}

/// It is told of the end in the same instant, and may be a little later. If it is stopped, nobody
/// knows how the child ended.
void Supervisor::wait_for_the_front(Child& child, int times) {
  constexpr int kTimes = 200;
  loop_.after(std::chrono::milliseconds(1), [this, &child, times] {
    if (!child.is_running()) return;
    if (times + 1 < kTimes && !events_.end_of_orphan(child.pid))
      return wait_for_the_front(child, times + 1);
    has_ended(child);
  });
}

void Supervisor::has_ended(Child& child) {
  const pid_t pid = child.pid;
  events_.after_commit([pidfd = std::make_shared<UniqueFd>(std::move(child.pidfd))] {});
  std::string end = collect(child);
  if (!child.is_end_known)
    if (const auto status = events_.end_of_orphan(pid)) end = take_end(child, *status);
  const Peer* peer = tables_.peer_of(pid);
  const bool had_served = peer != nullptr && peer->is_serving;
  const bool was_ordered =
      child.is_drained && (child.wanted == Wanted::restarted || child.wanted == Wanted::removed);
  spdlog::log(was_ordered ? spdlog::level::info : spdlog::level::warn, "{} (pid {}) ended: {}",
              child.name, pid, was_ordered ? "as was ordered" : end);
  events_.on_child_end(child, pid);
  // A child that fails before it has ever worked would fail again and again. One that a killed
  // keeper had started may only have been waiting for its go.
  const bool never_worked =
      child.is_end_known && (&child == &tables_.steward ? !tables_.is_formatted && child.starts >= 3
                                                        : !tables_.is_ready && !had_served);
  if (!never_worked) {
    carry_over_orders(child);
    return restart_later(child);
  }
  fail({Errc::bad_argument,
        child.program + " could not start (" + end + "); " +
            remedy_for(end, message_of(tables_.options.asked.log_file, child, pid))});
}

void Supervisor::restart_later(Child& child) {
  if (child.wanted == Wanted::removed) return spdlog::info("{} is removed", child.name);
  const bool died_young = std::chrono::steady_clock::now() - child.last_start < kYoung;
  child.young_deaths = died_young ? child.young_deaths + 1 : 0;
  const auto delay = delay_after(child.young_deaths);
  spdlog::info("{}: start {} follows in {} ms", child.name, child.starts + 1, delay.count());
  loop_.after(delay, [this, &child] { start(child); });
}

void Supervisor::stop_all() {
  const std::vector<Child*> children = all();
  for (Child* child : children)
    if (child->is_running()) kill_by_pidfd(child->pidfd);
  const auto end = std::chrono::steady_clock::now() + kPatienceWithKilledChildren;
  for (Child* child : children) {
    if (!child->is_running()) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (wait_for_end(child->pidfd, std::max(0, static_cast<int>(left.count()))))
      collect(*child);
    else
      spdlog::warn(
          "{} (pid {}) was killed and has not ended: the kernel is busy for it; it ends later",
          child->name, child->pid);
  }
}

void Supervisor::fail(Error error) {
  fatal_ = std::move(error);
  loop_.stop();
}

}  // namespace kvhive
