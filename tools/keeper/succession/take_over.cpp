#include "tools/keeper/succession/take_over.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"
#include "ipc/questions.hpp"
#include "pool/pool_layout.hpp"
#include "tools/keeper/succession/ledger.hpp"
#include "tools/program/option_flags.hpp"
#include "tools/program/version.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// The pool is as it is: a program that reads the daemon's options in another way must not have it.
Expected<void> check_flags(const Json& status) {
  const auto flags = status.at("flags").get<std::vector<std::string>>();
  auto options = options_from_words(flags);
  if (!options)
    return failure(options.error().code,
                   "this program does not take the daemon's options: " + options.error().text);
  if (to_flags(*options) == flags) return {};
  return failure(Errc::layout_mismatch,
                 "this program has other options than the daemon's program; stop the daemon and "
                 "start this one");
}

/// The first line that the program prints; empty if it cannot be executed.
std::string first_line_of(const std::filesystem::path& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::string name = program.string(), version = "--version";
  char* const words[] = {name.data(), version.data(), nullptr};
  pid_t pid = 0;
  const int status = posix_spawn(&pid, name.c_str(), &actions, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) return {};
  write_end = UniqueFd();
  std::string text;
  char some[256];
  for (ssize_t count = 0; (count = read(read_end.get(), some, sizeof some)) > 0;)
    text.append(some, static_cast<std::size_t>(count));
  waitpid(pid, nullptr, 0);
  return text.substr(0, text.find('\n'));
}

/// Those that the daemon starts are beside it, whole, and of the same build: an installation may be
/// half done.
Expected<void> check_programs(const std::filesystem::path& folder) {
  for (const std::string name : {"kvhive-steward", "kvhive-engine"}) {
    const std::string found = first_line_of(folder / name);
    if (found == version_text(name)) continue;
    return failure(Errc::not_found, (folder / name).string() + " --version says '" + found +
                                        "', not '" + version_text(name) +
                                        "'; install all programs together");
  }
  return {};
}

}  // namespace

Expected<std::string> take_over(const std::string& path) {
  auto socket = connect_to_daemon(path);
  if (!socket) return forward_error(socket);
  if (auto welcome = say_hello(socket->get(), InspectorHello{layout_hash({}), 0}); !welcome)
    return forward_error(welcome);
  const auto status = ask_status(socket->get(), 1);
  if (!status) return forward_error(status);
  if (auto same = check_flags(*status); !same) return forward_error(same);
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown) return failure(Errc::os_error, "/proc/self/exe: " + unknown.message());
  if (auto whole = check_programs(program.parent_path()); !whole) return forward_error(whole);
  const Order order{.ticket = 2, .what = Order::What::take_over, .version = kLedgerVersion};
  const auto done =
      ask_keeper<Done>(socket->get(), order, Json{{"program", program.string()}}.dump());
  if (!done) return forward_error(done);
  const Json told = Json::parse(done->tail());
  return told.at("version").get<std::string>() + " goes on as process " +
         std::to_string(told.at("front").get<int>()) +
         "; its engines follow with kvhive engine restart";
}

}  // namespace kvhive
