#include "tools/keeper/succession/front.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "config/domains/domain_rules.hpp"
#include "ipc/pidfd.hpp"
#include "tools/keeper/children/reaper.hpp"
#include "tools/keeper/succession/strays.hpp"
#include "tools/program/option_flags.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// So many keepers may be killed in a row before one has handled an event. The first few are
/// followed at once, the others ever later.
constexpr std::uint32_t kMostFruitless = 12, kFruitlessAtOnce = 4;
/// As in Supervisor::stop_all().
constexpr std::chrono::milliseconds kPatienceWithKilled{500};
/// So many may be killed before the pool is made; each has begun anew.
constexpr std::uint32_t kMostStarts = 3;

sigset_t signals_of_the_front() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

/// A process that shares this one's table of descriptors. The C library does not know of it: it
/// takes the process's first thread for this process's (its number, above all). A thread that is
/// started there is right in everything, so it does the work. No other thread of this process may
/// have a lock of the C library at that moment.
pid_t start_with_same_descriptors(const std::function<int()>& work) {
  const long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid != 0) return static_cast<pid_t>(pid);
  try {
    std::thread([&work] { std::exit(work()); }).join();
  } catch (const std::exception&) {  // the system gives no thread
  }
  _exit(1);
}

/// Names the ledger's descriptor in the environment of a program that is to go on with it.
constexpr const char* kHandedLedger = "KVHIVE_HANDED_LEDGER";
/// Says that the program is the one that was to take over: it may see its own path under another
/// name.
constexpr const char* kTakesOver = "KVHIVE_TAKES_OVER";

std::vector<std::string> own_command() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

/// Empty if it cannot be read.
std::string own_program() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
}

std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  const std::string self = std::to_string(getpid());
  std::ifstream file("/proc/self/task/" + self + "/children");
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

void Front::prepare_process() {
  const sigset_t signals = signals_of_the_front();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGINT, SIG_DFL);  // a keeper, which this process may have been, ignores it
  // Whom a killed keeper has started becomes this process's child.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Expected<Front> Front::open(const Options& options) {
  prepare_process();
  const ProcessLimits limits = take_process_limits();
  if (auto enough = check_descriptors(limits, options.engines); !enough)
    return forward_error(enough);
  auto domains = Domains::resolve(options, PeerIdentity::of_this_process());
  if (!domains) return forward_error(domains);
  auto access = resolve_permissions(options.socket_access);
  if (!access) return forward_error(access);
  auto listener = Listener::open(options.socket, *access);
  if (!listener) return forward_error(listener);
  if (auto enough = check_file_size(limits, "the daemon's ledger", LedgerMemory::kFirstBytes);
      !enough)
    return forward_error(enough);
  auto ledger = LedgerMemory::create();
  if (!ledger) return forward_error(ledger);
  auto pidfd = pidfd_of(getpid());
  if (!pidfd) return forward_error(pidfd);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return os_failure("pipe");
  UniqueFd lifeline(ends[0]);
  const UniqueFd low_end(ends[1]);
  // The kernel closes the descriptors of an ended process in the order of their numbers: when the
  // lifeline ends, nobody listens any more.
  UniqueFd end(fcntl(low_end.get(), F_DUPFD_CLOEXEC, listener->fd() + 1));
  if (!end) return os_failure("the lifeline");
  Estate estate{options,
                limits,
                std::move(*domains),
                std::move(*listener),
                std::move(*ledger),
                getpid(),
                std::move(*pidfd),
                std::move(end),
                std::move(lifeline),
                {},
                own_command()};
  // By numbers: whoever takes a place must not depend on what the system knows then.
  estate.options.domains = *with_numbers(options.domains);
  estate.descriptors = open_descriptors();
  estate.descriptors.erase(low_end.get());
  Front front(std::move(estate));
  front.write_estate();
  if (auto written = write_options(front.estate_.options, front.estate_.ledger); !written)
    return forward_error(written);
  HandOver{}.write(front.estate_.ledger);
  return front;
}

// -- another program ------------------------------------------------------------------------------

void Front::write_estate() const {
  const Listener::Handed listener = estate_.listener.hand_over();
  const Json text = {{"listener", {listener.fd, listener.directory}},
                     {"path", listener.path},
                     {"identity", listener.identity},
                     {"made_directory", listener.made_directory},
                     {"front_pidfd", estate_.front_pidfd.get()},
                     {"lifeline", {estate_.lifeline_end.get(), estate_.lifeline.get()}},
                     {"descriptors", estate_.descriptors}};
  estate_.ledger.write_text(LedgerMemory::Text::estate, text.dump());
}

Expected<void> write_options(const Options& options, const LedgerMemory& memory) {
  const std::string text = Json(to_flags(options)).dump();
  if (text.size() > LedgerMemory::kMostText)
    return failure(Errc::bad_argument,
                   "all options together have " + std::to_string(text.size()) +
                       " bytes, a daemon can have " + std::to_string(LedgerMemory::kMostText) +
                       "; shorten domains or shares, for example by groups instead of users");
  memory.write_text(LedgerMemory::Text::options, text);
  return {};
}

Expected<Options> read_options(const LedgerMemory& memory) {
  return options_from_words(Json::parse(memory.text(LedgerMemory::Text::options)));
}

void HandOver::write(const LedgerMemory& memory) const {
  memory.write_text(LedgerMemory::Text::successor,
                    Json{{"program", program}, {"error", error}}.dump());
}

HandOver HandOver::read(const LedgerMemory& memory) {
  const Json text = Json::parse(memory.text(LedgerMemory::Text::successor));
  return {text.at("program"), text.at("error")};
}

Expected<Front> Front::go_on(UniqueFd fd) {
  prepare_process();
  for (const int open : open_descriptors())
    if (open > STDERR_FILENO) fcntl(open, F_SETFD, FD_CLOEXEC);
  auto ledger = LedgerMemory::open(std::move(fd));
  if (!ledger) return forward_error(ledger);
  const Json text = Json::parse(ledger->text(LedgerMemory::Text::estate));
  auto options = read_options(*ledger);
  if (!options) return forward_error(options);
  auto domains = Domains::with_rules(*options);
  if (!domains) return forward_error(domains);
  auto listener =
      Listener::take_over({text.at("listener")[0], text.at("listener")[1], text.at("path"),
                           text.at("identity"), text.at("made_directory")});
  if (!listener) return forward_error(listener);
  auto pidfd = pidfd_of(getpid());
  if (!pidfd) return forward_error(pidfd);
  Estate estate{std::move(*options),
                take_process_limits(),
                std::move(*domains),
                std::move(*listener),
                std::move(*ledger),
                getpid(),
                std::move(*pidfd),
                UniqueFd(text.at("lifeline")[0].get<int>()),
                UniqueFd(text.at("lifeline")[1].get<int>()),
                text.at("descriptors").get<std::set<int>>(),
                own_command()};
  // Another process was the front, or this one under another program.
  const UniqueFd earlier(text.at("front_pidfd").get<int>());
  estate.descriptors.erase(earlier.get());
  estate.descriptors.insert(estate.front_pidfd.get());
  if (std::getenv(kTakesOver) != nullptr) HandOver{}.write(estate.ledger);
  unsetenv(kTakesOver);
  Front front(std::move(estate));
  front.write_estate();
  return front;
}

Error become_front(const Estate& estate, const std::string& program) {
  for (const int fd : open_descriptors()) fcntl(fd, F_SETFD, 0);
  setenv(kHandedLedger, std::to_string(estate.ledger.fd()).c_str(), 1);
  if (!program.empty()) setenv(kTakesOver, "1", 1);
  std::vector<char*> arguments;
  for (const std::string& word : estate.command)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // By its path, so that ps and top show its name.
  const std::string path = program.empty() ? own_program() : program;
  execv(path.c_str(), arguments.data());
  if (program.empty()) execv("/proc/self/exe", arguments.data());  // it was replaced
  const Error error = os_failure("execute " + path).value();
  unsetenv(kHandedLedger);
  unsetenv(kTakesOver);
  for (const int fd : open_descriptors())
    if (fd > STDERR_FILENO) fcntl(fd, F_SETFD, FD_CLOEXEC);
  return error;
}

std::optional<UniqueFd> handed_ledger() {
  const char* const handed = std::getenv(kHandedLedger);
  if (handed == nullptr) return std::nullopt;
  UniqueFd fd(std::atoi(handed));
  unsetenv(kHandedLedger);  // children are not to have it
  return fd;
}

// -- keepers --------------------------------------------------------------------------------------

Expected<int> Front::run(const std::function<int(Estate&)>& keep) {
  collector_ = std::make_unique<OrphanCollector>(estate_.ledger.head().orphans);
  if (auto started = start_keeper(keep); !started) return forward_error(started);
  const sigset_t signals = signals_of_the_front();
  while (true) {
    siginfo_t signal{};
    if (sigwaitinfo(&signals, &signal) < 0) continue;  // EINTR: this process was stopped
    if (signal.si_signo != SIGCHLD) {
      forward(signal);
      continue;
    }
    const auto end = end_of_child(keeper_, IfItRuns::say_so);
    if (!end && end.error() == NoEnd::it_runs) {
      collector_->wake();
      continue;
    }
    const int status = end.value_or(SIGKILL);  // no child of this process: it is gone, too
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitHandsOver) {
      if (auto started = hand_over(keep); !started) return forward_error(started);
      continue;
    }
    if (WIFEXITED(status)) {
      end_orphans();
      return WEXITSTATUS(status);
    }
    auto next = next_keeper(keep, WTERMSIG(status));
    if (next) continue;
    end_orphans();
    if (next.error().code == Errc::none) return 0;
    return forward_error(next);
  }
}

/// The keeper was asked to let another program go on. If that cannot be executed, this one does.
Expected<void> Front::hand_over(const std::function<int(Estate&)>& keep) {
  const Error error = become_front(estate_, HandOver::read(estate_.ledger).program);
  HandOver{{}, error.text}.write(estate_.ledger);
  return start_keeper(keep);
}

Expected<void> Front::start_keeper(const std::function<int(Estate&)>& keep) {
  ++estate_.ledger.head().keepers;
  keeper_ = collector_->start_spared(
      [&] { return start_with_same_descriptors([&] { return keep(estate_); }); });
  const int error = errno;
  collector_->wake();  // the one before it
  if (keeper_ >= 0) return {};
  errno = error;
  return os_failure("start the keeper");
}

/// The keeper was killed. Error: there is none any more; Errc::none = as it was to be.
Expected<void> Front::next_keeper(const std::function<int(Estate&)>& keep, int signal) {
  LedgerHead& head = estate_.ledger.head();
  const bool is_made = head.is_made != 0;
  if (!is_made && head.is_ending != 0) return failure(Errc::none, "");
  const std::uint32_t fruitless = head.fruitless++;
  if (fruitless + 1 >= (is_made ? kMostFruitless : kMostStarts))
    return failure(Errc::peer_died, "the keeper was ended by signal " + std::to_string(signal) +
                                        ", and " + std::to_string(fruitless) + " before it, " +
                                        (is_made ? "none of which had done anything: giving up"
                                                 : "before the pool was made: giving up"));
  if (fruitless >= kFruitlessAtOnce)
    std::this_thread::sleep_for(std::chrono::milliseconds(1 << (fruitless - kFruitlessAtOnce + 1)));
  if (!is_made) {  // the next one begins anew; nobody was served yet
    end_orphans();
    for (UniqueFd& stray : find_strays(estate_.descriptors, -1).others) stray = UniqueFd();
  }
  if (auto started = start_keeper(keep); !started) return started;
  // The one that was killed may not have heard it; to open the log twice does no harm.
  if (hangup_) forward(*hangup_);
  return {};
}

/// Tells the keeper, with the sender's name. If the keeper is killed before it hears it, its
/// successor reads in the ledger that it is to end.
void Front::forward(const siginfo_t& signal) {
  const bool is_hangup = signal.si_signo == SIGHUP;
  if (is_hangup)
    hangup_ = signal;
  else
    estate_.ledger.head().is_ending = 1;
  siginfo_t forwarded{};
  forwarded.si_signo = is_hangup ? SIGHUP : SIGTERM;
  forwarded.si_code = SI_QUEUE;
  const PassedOn passed{signal.si_signo, signal.si_code == SI_KERNEL};
  forwarded.si_pid = passed.is_of_the_terminal ? 0 : signal.si_pid;
  forwarded.si_uid = signal.si_uid;
  forwarded.si_value.sival_int = passed.value();
  syscall(SYS_rt_sigqueueinfo, keeper_, forwarded.si_signo, &forwarded);
}

/// Kills and collects the processes that a keeper has left behind. One that the kernel keeps for
/// long ends later. What the keeper had open is closed with this process: some of that is
/// strangers', and closing it here might take as long as they like.
void Front::end_orphans() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  const auto end = std::chrono::steady_clock::now() + kPatienceWithKilled;
  while (true) {
    collector_->collect_all();
    const std::vector<pid_t> left = children();
    const auto pause = end - std::chrono::steady_clock::now();
    if (left.empty() || pause <= pause.zero()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    const timespec patience{0, std::chrono::nanoseconds(pause).count()};
    sigtimedwait(&ends, nullptr, &patience);
  }
}

}  // namespace kvhive
