#include "tests/tools/daemon.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "base/check.hpp"
#include "ipc/text_memory.hpp"
#include "pool/care/pool_report.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

std::string read_all(int fd) {
  std::string all;
  char piece[4096];
  for (ssize_t got; (got = read(fd, piece, sizeof piece)) > 0;)
    all.append(piece, static_cast<std::size_t>(got));
  return all;
}

std::string read_line(int fd) {
  std::string line;
  for (char letter; read(fd, &letter, 1) == 1 && letter != '\n';) line += letter;
  return line;
}

}  // namespace

pid_t spawn(const std::string& path, const std::vector<std::string>& arguments, int out, int err,
            const BeforeExec& before_exec) {
  const pid_t pid = fork();
  KV_CHECK(pid >= 0);
  if (pid != 0) return pid;
  if (before_exec) before_exec();
  if (out >= 0) dup2(out, STDOUT_FILENO);
  if (err >= 0) dup2(err, STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  _exit(127);
}

CommandResult run(const std::string& name, const std::vector<std::string>& arguments,
                  const BeforeExec& before_exec) {
  int out[2], err[2];
  KV_CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
  const pid_t pid = spawn(program(name), arguments, out[1], err[1], before_exec);
  close(out[1]);
  close(err[1]);
  CommandResult result;
  result.out = read_all(out[0]);
  result.err = read_all(err[0]);
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::string passage(std::size_t from, std::size_t length) {
  std::ifstream file(kDemoModel + "/passage.txt");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str().substr(from, length);
}

GenerateRequest request_of(std::string prompt, std::uint32_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

ChannelRequest channel_request_of(std::string prompt, std::uint32_t max_tokens) {
  ChannelRequest request;
  request.prompt = std::move(prompt);
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit) {
  const char* const patience = std::getenv("KVHIVE_PATIENCE");
  if (patience != nullptr) limit = std::min(limit, std::chrono::seconds(std::atoi(patience)));
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds())
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

char state_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  return std::getline(stat, line) ? line[line.rfind(')') + 2] : '\0';
}

bool is_alive(pid_t pid) {
  const char state = state_of(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

pid_t keeper_of(pid_t front) {
  std::ifstream children("/proc/" + std::to_string(front) + "/task/" + std::to_string(front) +
                         "/children");
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm") >> std::ws, name);
    // The keeper is the oldest of that name; what it forks may be the front's child later.
    if (name == "kvhived" && is_alive(child)) return child;
  }
  return 0;
}

std::vector<pid_t> processes_of(pid_t front) {
  std::vector<pid_t> all = children_of(front);
  if (const pid_t keeper = keeper_of(front); keeper != 0)
    for (const pid_t grandchild : children_of(keeper)) all.push_back(grandchild);
  return all;
}

void kill_daemon(pid_t front) {
  pid_t keeper = 0;
  signal_process(front, SIGSTOP);
  if (eventually([&] { return state_of(front) == 'T'; })) keeper = keeper_of(front);
  if (keeper != 0) {
    signal_process(keeper, SIGSTOP);
    (void)eventually([&] { return state_of(keeper) == 'T'; });
  }
  signal_process(front, SIGKILL);
  if (keeper != 0) signal_process(keeper, SIGKILL);
  waitpid(front, nullptr, 0);
}

Daemon::Daemon(std::vector<std::string> flags, const BeforeExec& before_exec) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  KV_CHECK(mkdtemp(name) != nullptr);
  directory_ = name;
  socket_ = directory_ + "/kvhived.sock";
  if (std::find(flags.begin(), flags.end(), "--model") == flags.end())
    flags.insert(flags.end(), {"--model", kDemoModel});
  flags.insert(flags.end(), {"--socket", socket_});
  if (std::find(flags.begin(), flags.end(), "--threads") == flags.end())
    flags.insert(flags.end(), {"--threads", "1"});
  if (std::find(flags.begin(), flags.end(), "--log-level") == flags.end())
    flags.insert(flags.end(), {"--log-level", "error"});
  int out[2];
  KV_CHECK(pipe2(out, O_CLOEXEC) == 0);
  pid_ = spawn(program("kvhived"), flags, out[1], -1, before_exec);
  close(out[1]);
  const std::string line = read_line(out[0]);
  close(out[0]);
  EXPECT_NE(line.find("ready"), std::string::npos) << "kvhived did not start: " << line;
}

Daemon::~Daemon() {
  stop();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Daemon::stop() {
  if (pid_ == 0) return;
  signal_process(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void Daemon::kill() {
  kill_daemon(pid_);
  pid_ = 0;
}

void Daemon::kill_keeper() const {
  const pid_t dead = keeper();
  signal_process(dead, SIGKILL);
  EXPECT_TRUE(eventually([&] {
    const pid_t next = keeper();
    return next != 0 && next != dead;
  }));
}

void Daemon::signal_engines(int signal) const {
  const Json all = status();
  for (const Json& engine : all["engines"]) signal_process(engine["pid"], signal);
}

Json Daemon::status() const {
  const auto socket = connect_to_daemon(socket_);
  KV_CHECK(socket.has_value(), socket.error().text);
  KV_CHECK(send_packet(socket->get(), StatusRequest{}).has_value());
  const auto answer = receive_answer(socket->get(), 60'000);
  KV_CHECK(answer.has_value() && answer->has_value());
  return Json::parse(read_text_memory((*answer)->fds.at(0)).value());
}

CommandResult Daemon::cli(std::vector<std::string> arguments) const {
  arguments.insert(arguments.end(), {"--socket", socket_});
  return run("kvhive", arguments);
}

bool Daemon::nothing_is_held() const {
  const Json device = stat()["tiers"]["device"];
  return device["held"] == 0 && device["filling"] == 0;
}

Json Daemon::engine(std::uint32_t index) const {
  const Json all = procs();
  for (const Json& process : all["processes"])
    if (process["engine"] == index) return process;
  return nullptr;
}

std::uint64_t Daemon::running(std::uint32_t engine) const {
  for (const ProcessReport& process : read_statistics(pool()).processes)
    if (process.index == engine) return process.counted["running"];
  return 0;
}

std::uint64_t Daemon::preemptions() const {
  std::uint64_t sum = 0;
  const Json all = procs();
  for (const Json& process : all["processes"])
    sum += process["preemptions_recompute"].get<std::uint64_t>() +
           process["preemptions_swap"].get<std::uint64_t>();
  return sum;
}

PoolMemory Daemon::pool() const {
  const std::array<std::string, kPoolObjects> names = {"control", "metadata", "tokens", "device",
                                                       "host"};
  PoolFds fds;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    for (std::size_t i = 0; i < kPoolObjects; ++i)
      if (target.find("memfd:kvhive-" + names[i]) != std::string::npos)
        fds[i] = UniqueFd(open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
  }
  auto memory = PoolMemory::attach(fds, Access::read_write);
  KV_CHECK(memory.has_value(), memory.error().text);
  return std::move(*memory);
}

ClientOptions client_options(const std::string& socket, std::uint32_t engine,
                             std::size_t channel_bytes) {
  ClientOptions options;
  options.socket = socket;
  if (engine != kAnyEngine) options.engine = engine;
  options.channel_bytes = channel_bytes;
  return options;
}

Client Daemon::connect(std::uint32_t engine, std::size_t channel_bytes) const {
  auto client = Client::connect(client_options(socket_, engine, channel_bytes));
  KV_CHECK(client.has_value(), client.error().text);
  return std::move(*client);
}

std::vector<Progress> generate_all(std::vector<Client>& clients,
                                   const std::vector<GenerateRequest>& requests) {
  std::vector<Progress> results(requests.size());
  std::vector<std::map<RequestId, std::size_t>> open(
      clients.size());  // request number -> place in results
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto number = clients[i % clients.size()].submit(requests[i]);
    KV_CHECK(number.has_value(), number.error().text);
    open[i % clients.size()].emplace(*number, i);
  }
  for (std::size_t c = 0; c < clients.size(); ++c) {
    while (!open[c].empty()) {
      const auto woken = clients[c].wait();
      KV_CHECK(woken.has_value(), woken.error().text);
      std::erase_if(open[c], [&](const auto& entry) {
        Progress news = *clients[c].read(entry.first);
        Progress& whole = results[entry.second];
        whole.tokens.insert(whole.tokens.end(), news.tokens.begin(), news.tokens.end());
        whole.text += news.text;
        whole.prompt_tokens = news.prompt_tokens;
        whole.cached_tokens = news.cached_tokens;
        whole.preemptions = news.preemptions;
        if (news.engine) whole.engine = news.engine;
        whole.reason = news.reason;
        whole.error = news.error;
        return news.reason != Finish::none;
      });
    }
  }
  return results;
}

std::vector<TokenId> ids(const Progress& result) {
  std::vector<TokenId> tokens;
  for (const OutputToken& token : result.tokens) tokens.push_back(token.token);
  return tokens;
}

}  // namespace kvhive::testing
