#pragma once
// Starts a real kvhived as a user would, on its own socket, and stops it at the end of the test.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ipc/channel/client_channel.hpp"
#include "ipc/protocol.hpp"
#include "kvhive/client.hpp"
#include "pool/pool_memory.hpp"
#include "tests/support/signal_process.hpp"

namespace kvhive::testing {

using Json = nlohmann::json;

/// Path of a program. CMake sets the programs' directory and the demo model's;
/// KVHIVE_PROGRAMS_UNDER_TEST names another directory, for example with a mutant of kvhived.
inline std::string program(const std::string& name) {
  const char* other = std::getenv("KVHIVE_PROGRAMS_UNDER_TEST");
  return std::string(other != nullptr ? other : KVHIVE_BIN_DIR) + "/" + name;
}
inline const std::string kDemoModel = KVHIVE_DEMO_DIR;

struct CommandResult {
  int exit_code = -1;
  std::string out, err;

  Json json() const { return Json::parse(out); }
};

/// Called in a forked child before execv(), for example to set limits or enter namespaces.
using BeforeExec = std::function<void()>;

/// Forks and executes with the given descriptors as standard output and error.
pid_t spawn(const std::string& path, const std::vector<std::string>& arguments, int out = -1,
            int err = -1, const BeforeExec& before_exec = {});

/// Runs a program to its end.
CommandResult run(const std::string& name, const std::vector<std::string>& arguments,
                  const BeforeExec& before_exec = {});

/// The demo model's text, or a piece of it.
std::string passage(std::size_t from = 0, std::size_t length = std::string::npos);

/// Requests exactly `max_tokens` tokens after a prompt.
GenerateRequest request_of(std::string prompt, std::uint32_t max_tokens);

/// The same request, for a test that uses the channel without a Client.
ChannelRequest channel_request_of(std::string prompt, std::uint32_t max_tokens);

/// Longer than anything takes that works.
constexpr std::chrono::seconds kHang{60};

/// Calls `holds` until it returns true; false after `limit`: longer than an engine takes to start
/// beside several tests. Where tests are to fail soon, KVHIVE_PATIENCE says after how many seconds
/// at most. There is no sleep in between, because each call makes system calls or starts a process.
bool eventually(const std::function<bool()>& holds,
                std::chrono::seconds limit = std::chrono::seconds(30));

/// A process's state in /proc: R, S, T (stopped), Z ...; '\0' = there is no such process.
char state_of(pid_t pid);

/// A pool that is soon made.
inline const std::vector<std::string> kSmallPool = {"--kv-cache-memory-bytes", "8M"};

/// True while the process can be signalled and is no zombie.
bool is_alive(pid_t pid);

/// The keeper of the daemon that was started as this process (its front); 0 = there is none now.
pid_t keeper_of(pid_t front);
/// The front's and the keeper's children, the keeper included.
std::vector<pid_t> processes_of(pid_t front);
/// Kills front and keeper in the same instant: both are stopped before. Waits for the front.
void kill_daemon(pid_t front);

/// \param engine  kAnyEngine = the daemon chooses
ClientOptions client_options(const std::string& socket, std::uint32_t engine = kAnyEngine,
                             std::size_t channel_bytes = kDefaultChannelBytes);

class Daemon {
 public:
  /// Starts kvhived with `flags`, of the demo model if they name none, and waits until it is ready.
  explicit Daemon(std::vector<std::string> flags = {"--engines", "2", "--kv-cache-memory-bytes",
                                                    "32M"},
                  const BeforeExec& before_exec = {});
  ~Daemon();

  const std::string& socket() const { return socket_; }
  const std::string& directory() const { return directory_; }
  /// The front: what was started.
  pid_t pid() const { return pid_; }
  pid_t keeper() const { return keeper_of(pid_); }

  /// The keeper's status: itself, its processes and its clients. Asks over the socket, without
  /// starting a process.
  Json status() const;

  /// `kvhive ARGUMENTS --socket ...`
  CommandResult cli(std::vector<std::string> arguments) const;
  Json procs() const { return cli({"pool", "procs", "--format", "json"}).json(); }
  Json stat() const { return cli({"pool", "stat", "--format", "json"}).json(); }
  /// Whether no block of the device tier is held, or being filled.
  bool nothing_is_held() const;
  bool fsck_is_clean() const { return cli({"pool", "fsck", "--privileged"}).exit_code == 0; }
  /// The attached process of an engine, or null. Starts a process, during which a request may end.
  Json engine(std::uint32_t index) const;
  /// An engine's number of requests that it runs, and its pid. These start no process.
  std::uint64_t running(std::uint32_t engine) const;
  pid_t pid_of(std::uint32_t engine) const { return status()["engines"][engine]["pid"]; }
  std::uint64_t preemptions() const;

  /// Maps the daemon's pool for writing, without signing in. For tests that corrupt the pool.
  PoolMemory pool() const;

  Client connect(std::uint32_t engine = kAnyEngine,
                 std::size_t channel_bytes = std::size_t{16} << 20) const;

  void stop();  ///< SIGTERM, and wait
  void kill();  ///< SIGKILL front and keeper, and wait
  /// SIGKILL the keeper, and wait until there is another.
  void kill_keeper() const;
  void signal_engines(int signal) const;

 private:
  std::string directory_, socket_;
  pid_t pid_ = 0;
};

/// Submits all requests at once, to the clients in turn. Returns the results in the requests'
/// order.
std::vector<Progress> generate_all(std::vector<Client>& clients,
                                   const std::vector<GenerateRequest>& requests);

std::vector<TokenId> ids(const Progress& result);

}  // namespace kvhive::testing
