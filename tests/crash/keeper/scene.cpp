#include "tests/crash/keeper/scene.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/check.hpp"
#include "ipc/text_memory.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

/// The words of a process's command line, with a space after each. Empty = it has ended.
std::string command_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::ostringstream words;
  words << file.rdbuf();
  std::string text = words.str();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

/// A keeper's children are the front's once the keeper is dead.
pid_t process_with(pid_t front, const std::string& program, const std::string& flag) {
  if (front == 0) return 0;
  for (const pid_t child : processes_of(front)) {
    const std::string command = command_of(child);
    if (is_alive(child) && command.find("/" + program + " ") != std::string::npos &&
        command.find(flag) != std::string::npos)
      return child;
  }
  return 0;
}

}  // namespace

Scene::Scene(std::vector<std::string> flags) : flags_(std::move(flags)) {
  // Another user can reach the socket if the daemon lets it. The daemon makes directory "new".
  chmod(directory_.path().c_str(), 0711);
  socket_ = directory_.path() / "new/s";
  log_ = directory_.path() / "log";
  flags_.insert(flags_.end(),
                {"--model", kDemoModel, "--socket", socket_, "--threads", "1", "--engines", "2",
                 "--kv-cache-memory-bytes", "8M", "--log-file", log_, "--log-level", "warn"});
}

Scene::~Scene() {
  end_guest();
  if (front_ == 0) return;
  const Remains left = remains();
  kill_daemon(front_);
  (void)nothing_is_left_of(left);  // waits
}

void Scene::launch(const BeforeExec& before_exec) {
  int out[2];
  KV_CHECK(pipe2(out, O_CLOEXEC) == 0);
  news_ = UniqueFd(out[0]);
  const UniqueFd written(out[1]);
  front_ = spawn(program("kvhived"), flags_, written.get(), written.get(), before_exec);
}

void Scene::start() {
  launch();
  KV_CHECK(is_ready(), last_words_);
}

bool Scene::is_ready() {
  std::string line;
  for (char letter; line.find('\n') == std::string::npos && read(news_.get(), &letter, 1) == 1;)
    line += letter;
  last_words_ = line;
  return line.find("ready") != std::string::npos;
}

Complaints Scene::stop(Left left) {
  end_guest();
  const Remains before = remains();
  signal_process(front_, SIGTERM);
  int status = 0;
  waitpid(front_, &status, 0);
  front_ = 0;
  Complaints complaints = nothing_is_left_of(before, left);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    complaints.push_back("kvhived ended with status " + std::to_string(status));
  return complaints;
}

pid_t Scene::steward() const { return process_with(front_, "kvhive-steward", ""); }

pid_t Scene::engine(std::uint32_t index) const {
  return process_with(front_, "kvhive-engine", "--index " + std::to_string(index) + " ");
}

pid_t Scene::any_engine() const { return process_with(front_, "kvhive-engine", ""); }

void Scene::start_guest() {
  const pid_t parent = getpid();
  guest_ =
      spawn(program("kvhive-engine"),
            {"--model", kDemoModel, "--socket", socket_, "--threads", "1", "--log-level", "off"},
            -1, -1, [parent] {
              prctl(PR_SET_PDEATHSIG, SIGKILL);
              if (getppid() != parent) _exit(1);
            });
}

void Scene::add_guest() {
  start_guest();
  KV_CHECK(eventually([this] { return has_memory_object(guest_, "device"); }, kHang));
  auto client = connect(2);
  KV_CHECK(client.has_value(), client.error().text);
  KV_CHECK(client->generate(short_request()).has_value());
}

void Scene::end_guest() {
  if (guest_ == 0) return;
  signal_process(guest_, SIGKILL);
  waitpid(guest_, nullptr, 0);
  guest_ = 0;
}

Result<Client> Scene::connect(std::uint32_t engine) const {
  return Client::connect(client_options(socket_, engine, kLeastChannelBytes));
}

bool Scene::fsck_is_clean() const {
  return run("kvhive", {"pool", "fsck", "--privileged", "--socket", socket_}).exit_code == 0;
}

bool Scene::has_swept_all_slots() const {
  const auto socket = connect_to_daemon(socket_);
  if (!socket || !send_packet(socket->get(), StatusRequest{})) return false;
  const auto answer = receive_answer(socket->get());
  if (!answer || !*answer || !(*answer)->is(MessageType::status)) return false;
  const Json status = Json::parse(read_text_memory((*answer)->fds.at(0)).value());
  const Json& slots = status["slots"];
  return std::all_of(slots.begin(), slots.end(),
                     [](const Json& slot) { return slot["use"] != "unswept"; });
}

Belongings Scene::belongings() const {
  return {descriptors_of(front_), memory_objects_of(front_).size(), processes_of(front_).size()};
}

Scene::Remains Scene::remains() const {
  Remains left{processes_of(front_), memory_objects_of(front_)};
  left.has_steward = std::any_of(left.processes.begin(), left.processes.end(), [](pid_t child) {
    return is_alive(child) && command_of(child).find("/kvhive-steward ") != std::string::npos;
  });
  if (guest_ != 0) left.processes.push_back(guest_);
  return left;
}

Complaints Scene::nothing_is_left_of(const Remains& remains, Left left) const {
  Complaints complaints;
  for (const pid_t pid : remains.processes)
    if (!eventually([&] { return !is_alive(pid); }, kHang))
      complaints.push_back("process " + std::to_string(pid) + " is left: " + command_of(pid));
  if (!eventually([&] { return holders_of(remains.objects).empty(); }, kHang))
    complaints.push_back("a memory object is left");
  if (left == Left::perhaps_the_socket) return complaints;
  // The steward has removed them before it ended.
  if (std::filesystem::exists(socket_)) complaints.push_back("the socket is left");
  if (std::filesystem::exists(std::filesystem::path(socket_).parent_path()))
    complaints.push_back("the socket's directory is left");
  return complaints;
}

void Scene::clear_away(const Remains& remains) const {
  for (const pid_t pid : remains.processes)
    if (is_alive(pid)) signal_process(pid, SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(std::filesystem::path(socket_).parent_path(), ignored);
}

GenerateRequest short_request() { return request_of("In the beginning", 16); }

GenerateRequest long_request() {
  return request_of("And it came to pass in those days, that there went out a decree", 120);
}

}  // namespace kvhive::testing
