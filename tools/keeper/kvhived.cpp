// kvhived: the daemon. Parses options, goes into the background if asked to, starts the keeper, and
// tells the user whether it serves.

#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "ipc/default_socket.hpp"
#include "tools/keeper/detach.hpp"
#include "tools/keeper/keeper.hpp"
#include "tools/privilege/drop.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/option_flags.hpp"
#include "tools/program/output.hpp"
#include "tools/program/program.hpp"

namespace kvhive {
namespace {

void log_pool(const MadePool& pool) {
  spdlog::info(
      "{}: {} device and {} host blocks of {} ({} tokens each), sequences of up to {} tokens",
      pool.model.name, pool.size.device_blocks - 1, pool.size.host_blocks,
      format_bytes(pool.model.layout.block_bytes()), pool.geometry.tokens_per_block,
      pool.size.max_model_len);
}

/// Starts the keeper and serves until it is told to stop.
Expected<void> serve(const Options& options, Starter& starter) {
  spdlog::info("starting: model {}, socket {}, {} engines", options.model, options.socket,
               options.engines);
  auto keeper = Keeper::start(options);
  if (!keeper) return forward_error(keeper);
  if (*keeper == nullptr) return {};  // stopped before it was ready
  log_pool((*keeper)->pool());
  return (*keeper)->run([&] {
    const std::string line = "ready on " + (*keeper)->socket_path() + " (" +
                             std::to_string(options.engines) + " engines)";
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

Expected<int> run(int argc, char** argv) {
  CommandLine app("kvhived",
                  "kvhived: one KV cache per host. Starts a pool in shared memory and the engines "
                  "that share it");
  OptionFlags flags(app);
  bool is_detached = false;
  app.add_flag("--detach", is_detached,
               "return when the daemon is ready, leaving it in the background; it logs to "
               "--log-file, or to kvhive/kvhived.log under $XDG_STATE_HOME (/var/log for root)");
  if (const auto code = app.read(argc, argv)) return *code;
  auto options = flags.options();
  if (!options) return forward_error(options);
  auto user = wanted_user(*options);
  if (!user) return forward_error(user);
  const bool changes_user = user->has_value();
  if (options->socket.empty()) options->socket = changes_user ? system_socket() : default_socket();
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
  auto served = start_log("kvhived", std::string(to_string(options->log_level)), *log_file);
  const bool is_logging = served.has_value();
  if (served) served = serve(*options, *starter);
  if (served) {
    spdlog::info("stopped");
    return 0;
  }
  if (is_logging && !log_file->empty()) spdlog::critical("{}", served.error().text);
  starter->failed("kvhived: " + served.error().text);
  return 1;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) { return kvhive::run_program("kvhived", kvhive::run, argc, argv); }
