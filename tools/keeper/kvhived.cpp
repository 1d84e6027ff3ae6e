// kvhived: the daemon. Parses options, goes into the background if asked to, and becomes the front,
// which starts the keeper. That tells the user whether it serves.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "config/models/hosted_models.hpp"
#include "ipc/default_socket.hpp"
#include "tools/keeper/detach.hpp"
#include "tools/keeper/keeper.hpp"
#include "tools/keeper/succession/front.hpp"
#include "tools/keeper/succession/take_over.hpp"
#include "tools/privilege/drop.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/option_flags.hpp"
#include "tools/program/option_text.hpp"
#include "tools/program/output.hpp"
#include "tools/program/program.hpp"

namespace kvhive {
namespace {

void log_pool(const MadePool& pool) {
  for (const ModelFacts& model : pool.models)
    spdlog::info(
        "{}: {} device and {} host blocks of {} ({} tokens each), sequences of up to {} tokens",
        model.name, pool.size.device_blocks - 1, pool.size.host_blocks,
        format_bytes(pool.geometry.block_bytes()), model.layout.block_size, model.max_model_len);
}

/// Starts a keeper, or a successor of one that was killed, and serves until it is told to stop.
Expected<void> serve(Estate& estate, Starter& starter, std::optional<Keeper::Legacy> legacy) {
  const Options& options = estate.options;
  if (!legacy)
    spdlog::info("starting: model {}, socket {}, engines of each: {}", options.model,
                 options.socket, options.engines);
  auto keeper = legacy ? Keeper::resume(estate, std::move(*legacy)) : Keeper::start(estate);
  if (!keeper) return forward_error(keeper);
  if (*keeper == nullptr) return {};  // stopped before it was ready
  if (!legacy) log_pool((*keeper)->pool());
  return (*keeper)->run([&] {
    const auto models = hosted_models(options);
    const std::uint32_t engines = models ? all_engines(*models) : options.engines;
    const std::string line = "ready on " + (*keeper)->socket_path() + " (" +
                             std::to_string(engines) + (engines == 1 ? " engine)" : " engines)");
    spdlog::info("{}", line);
    const auto told = starter.ready("kvhived: " + line);
    if (told) return;
    spdlog::error("the ready line could not be written: {}", told.error().text);
    if (told.error().code == Errc::peer_died) kill(getpid(), SIGTERM);  // nobody wants it any more
  });
}

/// The daemon's log file: the one that the operator named, or the default one if the daemon is
/// detached. The path is made absolute, because the children get it, too. Empty = the daemon logs
/// to standard error.
Expected<std::string> log_file_for(const Options& options, bool is_detached, bool changes_user) {
  if (!options.log_file.empty()) return std::filesystem::absolute(options.log_file).string();
  if (is_detached) return default_log_file(changes_user);
  return std::string();
}

/// Becomes the user that the operator wants, and gives up root's capabilities. Directories that
/// only root can make are made before: the socket's, and the default one of the log.
Expected<void> become(const std::optional<RunAs>& user, const Options& options) {
  if (user) {
    const auto directory_of = [](const std::string& path) {
      return std::filesystem::absolute(path).parent_path().string();
    };
    for (const std::string& path : {options.socket, options.log_file})
      if (!path.empty())
        if (auto made = make_directory_for(*user, directory_of(path)); !made) return made;
  }
  return drop_privileges(options, user);
}

/// The front failed: nobody logs yet.
int end_with(const Error& error, const Options& options, Starter& starter) {
  if (!options.log_file.empty() &&
      start_log("kvhived", std::string(to_string(options.log_level)), options.log_file))
    spdlog::critical("{}", error.text);
  starter.failed("kvhived: " + error.text);
  return 1;
}

/// Run by each keeper's process. Returns its exit code.
int keep(Estate& estate, Starter& starter) {
  if (auto now = read_options(estate.ledger))
    estate.options = std::move(*now);
  else
    return end_with(now.error(), estate.options, starter);
  const Options& options = estate.options;
  std::optional<Keeper::Legacy> legacy;
  if (estate.ledger.head().is_made != 0) legacy = Keeper::read_legacy(estate);
  auto served = start_log("kvhived", std::string(to_string(options.log_level)), options.log_file);
  const bool is_logging = served.has_value();
  if (served) served = serve(estate, starter, std::move(legacy));
  if (served) {
    spdlog::info("stopped");
    return 0;
  }
  if (is_logging && !options.log_file.empty()) spdlog::critical("{}", served.error().text);
  starter.failed("kvhived: " + served.error().text);
  return 1;
}

int run_front(Front& front, Starter& starter) {
  auto code = front.run([&](Estate& estate) { return keep(estate, starter); });
  return code ? *code : end_with(code.error(), front.options(), starter);
}

/// What is typed beside --take-over, and would not be used: the daemon keeps its own options.
Expected<void> check_take_over(const CLI::App& app) {
  std::string unused;
  for (const CLI::Option* option : options_of(app)) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--take-over" || name == "--socket") continue;
    unused += (unused.empty() ? "" : ", ") + name;
  }
  if (unused.empty()) return {};
  return failure(Errc::bad_argument,
                 unused +
                     ": not with --take-over, which takes --socket alone: the daemon keeps its own "
                     "options; kvhive reload changes those that may change while it runs");
}

Expected<int> print_take_over(const std::string& socket) {
  auto line = take_over(socket);
  if (!line) return forward_error(line);
  std::printf("%s\n", line->c_str());
  return 0;
}

/// Another kvhived ran in this process, and was to be followed.
int go_on(UniqueFd ledger) {
  ServiceManager::of_this_process().tell("MAINPID=" + std::to_string(getpid()));
  Starter nobody = Starter::of_nobody();
  auto front = Front::go_on(std::move(ledger));
  if (!front) return end_with(front.error(), {}, nobody);
  return run_front(*front, nobody);
}

Expected<int> run(int argc, char** argv) {
  if (auto ledger = handed_ledger()) return go_on(std::move(*ledger));
  CommandLine app("kvhived",
                  "kvhived: one KV cache per host. Starts a pool in shared memory and the engines "
                  "that share it");
  OptionFlags flags(app);
  bool is_detached = false;
  app.add_flag("--detach", is_detached,
               "return when the daemon is ready, leaving it in the background; it logs to "
               "--log-file, or to kvhive/kvhived.log under $XDG_STATE_HOME (/var/log for root)");
  bool takes_over = false;
  app.add_flag("--take-over", takes_over,
               "the daemon that runs on --socket goes on with this program, and with its own "
               "options; it loses nothing. No option but --socket goes with this");
  if (const auto code = app.read(argc, argv)) return *code;
  if (takes_over)
    if (auto alone = check_take_over(app); !alone) return forward_error(alone);
  auto options = flags.options();
  if (!options) return forward_error(options);
  auto user = wanted_user(*options);
  if (!user) return forward_error(user);
  const bool changes_user = user->has_value();
  if (options->socket.empty()) options->socket = changes_user ? system_socket() : default_socket();
  if (takes_over) return print_take_over(options->socket);
  if (auto valid = check_options(*options); !valid) return forward_error(valid);
  auto log_file = log_file_for(*options, is_detached, changes_user);
  if (!log_file) return forward_error(log_file);
  const bool is_default_log = options->log_file.empty() && !log_file->empty();
  options->log_file = *log_file;

  if (auto dropped = become(*user, *options); !dropped) return forward_error(dropped);
  if (is_default_log)
    if (auto made = make_log_directory(*log_file); !made) return forward_error(made);
  signal(SIGPIPE, SIG_IGN);  // the daemon must not die when the reader of its log pipe ends
  auto starter = is_detached ? Starter::detach(*log_file) : Starter::in_foreground();
  if (!starter) return forward_error(starter);
  auto front = Front::open(*options);
  if (!front) return end_with(front.error(), *options, *starter);
  return run_front(*front, *starter);
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) { return kvhive::run_program("kvhived", kvhive::run, argc, argv); }
