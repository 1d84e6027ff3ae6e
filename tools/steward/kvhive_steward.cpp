// kvhive-steward: formats the pool once, then returns what dead processes held, and now and then
// clears the index's marks. It keeps nothing of its own, so restarting it costs nothing: the keeper
// tells the next one what is left to sweep.

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "config/options.hpp"
#include "ipc/listener.hpp"
#include "ipc/pidfd.hpp"
#include "ipc/protocol.hpp"
#include "pool/care/index_marks.hpp"
#include "pool/care/reaper.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/repair.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/program.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/program/slot_owners.hpp"
#include "tools/privilege/system_calls.hpp"

namespace kvhive {
namespace {

/// How long the steward waits for an order before it looks at the index. Nothing depends on it.
constexpr int kIdleMs = 10'000;
/// Marked buckets are cleaned from one in this many on: below, clearing costs more than it saves.
constexpr std::size_t kMarkedBuckets = 32;

/// Whether the process is an engine that was started for this daemon: its pid may be another
/// process's by now. Engines let nobody look at what they have mapped.
bool is_engine_of(const std::string& socket_path, pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string program, last;
  std::getline(file, program, '\0');
  if (!std::string_view(program).ends_with("kvhive-engine")) return false;
  for (std::string word; std::getline(file, word, '\0'); last = std::move(word))
    if (last == "--socket" && word == socket_path) return true;
  return false;
}

class Steward {
 public:
  static Expected<Steward> attach(const std::string& socket_path, bool locks_metadata) {
    auto socket = connect_to_daemon(socket_path);
    if (!socket) return forward_error(socket);
    // The keeper starts the steward first of all; it may take a minute to measure the model before
    // it answers.
    auto welcome = say_hello(socket->get(), StewardHello{layout_hash({})}, -1);
    if (!welcome) return forward_error(welcome);
    const PoolFds fds = take_pool_fds(*welcome);
    auto memory = PoolMemory::attach(fds, Access::read_write);
    // Fresh, or our predecessor died formatting it.
    if (!memory && memory.error().code == Errc::not_running) {
      if (auto formatted = PoolMemory::format(fds, welcome->message.geometry); !formatted)
        return forward_error(formatted);
      memory = PoolMemory::attach(fds, Access::read_write);
    }
    if (!memory) return forward_error(memory);
    if (locks_metadata)
      if (auto locked = memory->lock_metadata(); !locked) return forward_error(locked);
    memory->hide_from_children();
    return Steward(std::move(*socket), std::move(*memory));
  }

  /// Front and keeper are dead. Engines end by themselves, but not those that are stopped.
  void end_engines(const std::string& socket_path) const {
    for (const ProcessEntry& process : memory_.control().processes) {
      const auto pid = static_cast<pid_t>(process.pid.load());
      if (pid == 0) continue;
      const auto pidfd = pidfd_of(pid);
      if (pidfd && is_engine_of(socket_path, pid)) kill_by_pidfd(*pidfd);
    }
  }

  /// Serves until the keeper hangs up.
  Expected<void> run() {
    if (auto sent = send_packet(socket_.get(), Formatted{}); !sent) return sent;
    // A predecessor may have been killed as it cleared marks that are needed.
    bool must_clear = next_serial() > 1;
    while (true) {
      auto packet = receive_answer(socket_.get(), must_clear ? 0 : kIdleMs);
      if (!packet && packet.error().code == Errc::not_running) {  // no order waits
        if (std::exchange(must_clear, false))
          clear_marks(memory_);
        else
          care_for_index();
        continue;
      }
      if (!packet) return forward_error(packet);
      if (!*packet) return {};
      if (const auto order = (*packet)->as<Reap>(); order && order->slot < kMaxProcesses)
        sweep(*order);
      if ((*packet)->is(MessageType::reopen_log))
        if (auto reopened = reopen_log(); !reopened) spdlog::error("{}", reopened.error().text);
      if (const auto limits = (*packet)->as<Limits>()) set_log_level(limits->log_level.str());
      if (const auto order = (*packet)->as<Repair>()) care_for(*order, (*packet)->tail());
    }
  }

 private:
  Steward(UniqueFd socket, PoolMemory memory)
      : socket_(std::move(socket)), memory_(std::move(memory)) {}

  void sweep(const Reap& order) {
    const std::uint32_t slot = order.slot;
    const Unheld unheld = order.drops_unheld != 0 ? Unheld::dropped : Unheld::kept;
    const ReapReport report = reap(memory_, ProcessSlot{slot}, unheld);
    if (unheld == Unheld::dropped)
      spdlog::warn("slot {} lost its device: {} cached blocks dropped", slot, report.dropped);
    const Reaped done{slot, static_cast<std::uint32_t>(report.freed),
                      static_cast<std::uint32_t>(report.released),
                      static_cast<std::uint32_t>(report.requests), order.ticket};
    (void)send_packet(socket_.get(), done);  // an error means that the keeper is gone: run() ends
  }

  std::uint64_t next_serial() const {
    return memory_.control().next_serial.load(std::memory_order_relaxed);
  }

  /// Clears the marks that no hint needs, if there are many. Looks only after as many blocks were
  /// published as the index has buckets, because nothing else sets marks.
  void care_for_index() {
    if (next_serial() - cared_at_ < memory_.layout().index_buckets) return;
    cared_at_ = next_serial();
    const IndexMarks marks = count_marks(memory_);
    if (marks.marked * kMarkedBuckets < marks.buckets) return;
    const ClearedMarks done = clear_marks(memory_);
    spdlog::debug("index: {} of {} buckets were marked as overflowed, {} need it no more",
                  marks.marked, marks.buckets, done.cleared - done.restored);
  }

  void care_for(const Repair& order, std::string_view owners) {
    const nlohmann::json done = order.care == Care::reset_cache ? forget() : mend(owners);
    // An error means that the keeper is gone: run() ends.
    (void)send_packet(socket_.get(), Repaired{order.ticket}, {}, done.dump());
  }

  nlohmann::json forget() {
    const CacheReset done = reset_cache(memory_);
    return {{"resets", done.resets.value}, {"forgotten_blocks", done.forgotten}};
  }

  nlohmann::json mend(std::string_view owners) {
    const RepairReport report = repair(memory_, slot_owners_of(nlohmann::json::parse(owners)));
    return {{"retired", report.retired},
            {"holders", report.holders},
            {"hints_dropped", report.hints_dropped},
            {"hints_restored", report.hints_restored},
            {"free_listed", report.free_listed},
            {"restamped", report.restamped},
            {"fields", report.fields}};
  }

  UniqueFd socket_;
  PoolMemory memory_;
  std::uint64_t cared_at_ = 0;  ///< the pool's next serial when care_for_index() last looked
};

Expected<int> run(int argc, char** argv) {
  CommandLine app("kvhive-steward",
                  "kvhive-steward: formats the pool and frees what dead processes held. kvhived "
                  "starts it");
  std::string socket, identity, level = "info", log_file;
  pid_t keeper_pid = 0;
  int lifeline = -1;
  bool removes_directory = false, locks_metadata = false;
  SystemCallFilter filter = SystemCallFilter::automatic;
  app.add_option("--socket", socket, "the daemon's socket")->required();
  app.add_option("--socket-identity", identity, "the socket's device and inode number");
  app.add_option("--keeper", keeper_pid, "the daemon's process")->required();
  app.add_option("--lifeline", lifeline, "a pipe that ends with the daemon")->required();
  app.add_flag("--remove-directory", removes_directory, "the daemon made the socket's directory");
  app.add_flag("--lock-metadata", locks_metadata, "keep the pool's metadata out of swap");
  add_choice<SystemCallFilter>(app, "--system-call-filter", filter,
                               "make only the system calls that the steward needs");
  app.add_option("--log-level", level, "log level");
  app.add_option("--log-file", log_file, "file to log to; empty = standard error");
  if (const auto code = app.read(argc, argv)) return *code;
  for (const int signal_number : {SIGINT, SIGHUP}) signal(signal_number, SIG_IGN);  // the keeper's
  signal(SIGPIPE, SIG_IGN);
  if (auto started = start_log("steward", level, log_file); !started) return forward_error(started);
  auto steward = Steward::attach(socket, locks_metadata);
  if (auto kept = keep_only_calls_of(Program::steward, filter); !kept) return forward_error(kept);
  auto ended = steward ? steward->run() : Expected<void>(forward_error(steward));
  if (!ended && ended.error().code != Errc::peer_died && ended.error().code != Errc::not_running) {
    spdlog::error("{}", ended.error().text);
    return 1;
  }
  // The connection may be gone because the keeper will not have this steward: then it is about to
  // be killed. Only when the pipe ends are front and keeper both gone.
  char nothing;
  while (read(lifeline, &nothing, 1) < 0 && errno == EINTR) continue;
  if (steward) steward->end_engines(socket);
  const bool removed = remove_stale_socket(socket, identity, keeper_pid);
  spdlog::warn("the daemon (pid {}) ended without stopping its children; its socket is {}",
               keeper_pid, removed ? "removed" : "gone or another daemon's");
  // The keeper may have been killed after it removed the socket and before it removed the
  // directory. rmdir() fails if another daemon's socket is in it.
  if (removes_directory) rmdir(std::filesystem::path(socket).parent_path().c_str());
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  return kvhive::run_program("kvhive-steward", kvhive::run, argc, argv);
}
