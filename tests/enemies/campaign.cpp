#include "tests/enemies/campaign.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "ipc/pidfd.hpp"
#include "tests/enemies/attacks.hpp"
#include "tests/enemies/honest_client.hpp"
#include "tests/enemies/operator.hpp"
#include "tests/enemies/statistics.hpp"
#include "tests/support/signal_process.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kTick{0.02}, kCensusEvery{0.5};
/// After a change of phase, before anything is measured.
constexpr Seconds kSettle{0.3};
constexpr auto kAttackHang = std::chrono::seconds(30);
constexpr double kMostSecondsToStop = 1;
constexpr double kMostRatio = 1.05;
/// With fewer sets of rounds, chance would decide too often whether the ratio is judged too large.
constexpr std::size_t kEnoughSets = 10;
/// Each phase comes in each place equally often.
constexpr Phase kOrders[][kPhases] = {
    {Phase::calm, Phase::decoy, Phase::storm}, {Phase::storm, Phase::decoy, Phase::calm},
    {Phase::decoy, Phase::storm, Phase::calm}, {Phase::calm, Phase::storm, Phase::decoy},
    {Phase::storm, Phase::calm, Phase::decoy}, {Phase::decoy, Phase::calm, Phase::storm}};
constexpr double kMostSecondsOfACommand = 10;
/// What a keeper's tables of connections and its allocator may add.
constexpr std::size_t kKeeperSlack = std::size_t{16} << 20;
/// What an engine's allocator may keep beyond the copies of its clients' prompts.
constexpr std::size_t kEngineSlack = std::size_t{64} << 20;
constexpr std::size_t kDescriptors = 4096;

std::string text_of(const char* format, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// The daemon and the honest client then notice less of what else runs on this machine. The enemies
/// run when no other wants the processor, so for them it changes nothing. Only root can do it.
void go_before_other_work() { (void)setpriority(PRIO_PROCESS, 0, -10); }

std::vector<std::string> daemon_flags(const std::string& log_file) {
  return {"--engines",
          "2",
          "--kv-cache-memory-bytes",
          "64M",
          "--socket-access",
          "everybody",
          "--log-level",
          "info",
          "--log-file",
          log_file};
}

/// What the kernel's scheduler counts for a process's threads, in seconds.
struct Scheduled {
  double ran = 0;     ///< on a processor
  double waited = 0;  ///< for a processor, while it could have run
};

Scheduled scheduled(const std::vector<pid_t>& pids) {
  Scheduled sum;
  for (const pid_t pid : pids) {
    std::error_code gone;
    const auto tasks = std::filesystem::path("/proc") / std::to_string(pid) / "task";
    for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
      double ran_ns = 0, waited_ns = 0;
      std::ifstream(task.path() / "schedstat") >> ran_ns >> waited_ns;
      sum.ran += ran_ns / 1e9;
      sum.waited += waited_ns / 1e9;
    }
  }
  return sum;
}

Seconds round_length(double minutes) { return Seconds(std::clamp(minutes * 60 / 15, 3.0, 10.0)); }

const char* name_of(Phase phase) {
  constexpr const char* kNames[kPhases] = {"calm", "decoy", "storm"};
  return kNames[static_cast<std::size_t>(phase)];
}

/// Started with a limit of descriptors. Other users may search its directory.
void start(std::optional<Daemon>& daemon, const std::string& log_file) {
  daemon.emplace(daemon_flags(log_file), [] {
    const rlimit descriptors{kDescriptors, kDescriptors};
    setrlimit(RLIMIT_NOFILE, &descriptors);
    go_before_other_work();
  });
  // The run made the directory, so the daemon does not set its mode.
  KV_CHECK(chmod(daemon->directory().c_str(), 0711) == 0);
}

}  // namespace

// -- the course -----------------------------------------------------------------------------------

Campaign::Campaign(const Settings& settings) : settings_(settings) {
  start(daemon_, logs_.path() / "kvhived.log");
  start(decoy_, logs_.path() / "decoy.log");
}

bool Campaign::run() {
  const auto shm = named_shared_memory();
  const auto objects = memory_objects_of(daemon_->pid());
  start_honest();
  before_ = Census::of(*daemon_, daemon_->status());
  at_first_ = Processes::in(daemon_->status());
  enemies_.emplace(*board_, settings_.enemies, settings_.seed,
                   Targets{daemon_->socket(), decoy_->socket()},
                   Arms{settings_.is_root, settings_.words});
  play_sets();
  enter(Phase::calm);
  is_fsck_clean_ = daemon_->fsck_is_clean();
  // The verdict names descriptors that have not come back.
  (void)eventually([&] {
    after_ = Census::of(*daemon_, daemon_->status());
    return after_.keeper_descriptors <= before_.keeper_descriptors &&
           after_.engine_descriptors <= before_.engine_descriptors;
  });
  at_last_ = Processes::in(daemon_->status());
  decoys_restarts_ = Processes::in(decoy_->status()).restarts;
  stop_in_the_storm();
  if (!std::filesystem::is_empty(daemon_->directory())) left_ += "files beside the socket; ";
  if (!eventually([&] { return holders_of(objects).empty(); })) left_ += "the pool's memory; ";
  for (const pid_t pid : at_last_.all)
    if (is_alive(pid)) left_ += "process " + std::to_string(pid) + "; ";
  if (named_shared_memory() != shm) left_ += "files in /dev/shm; ";

  print_attacks();
  Verdict verdict;
  judge_harm(verdict);
  judge_use(verdict);
  judge_end(verdict);
  judge_speed(verdict);
  verdict.print();
  return verdict.is_good();
}

void Campaign::start_honest() {
  honest_ = ChildProcess([&] {
    go_before_other_work();
    if (settings_.is_root) become_for_good(kHonestUser);
    live_as_honest_client(*board_, daemon_->socket());
  });
  operator_ = ChildProcess([&] { live_as_operator(*board_, *daemon_); });
  KV_CHECK(eventually([&] { return board_->requests.count > 4 * kRequestsToLearn; }, kAttackHang));
}

/// Waits until the enemies have gone with all their channels, then calls them.
void Campaign::enter(Phase phase) {
  enemies_->call(Phase::calm);
  const bool are_gone = eventually(
      [&] { return enemies_->are_quiet() && only_honest_clients(daemon_->status()); }, kAttackHang);
  were_channels_left_ = were_channels_left_ || !are_gone;
  if (phase != Phase::calm) enemies_->call(phase);
  tend_for(kSettle);
}

void Campaign::tend_for(Seconds time) {
  const auto end = Clock::now() + time;
  auto next_census = Clock::now();
  while (Clock::now() < end) {
    enemies_->tend();
    if (Clock::now() >= next_census) {
      most_.widen(Census::of(*daemon_, daemon_->status()));
      next_census = Clock::now() + std::chrono::duration_cast<Clock::duration>(kCensusEvery);
    }
    std::this_thread::sleep_for(kTick);
  }
}

Campaign::Round Campaign::play(Phase phase) {
  enter(phase);
  const std::vector<pid_t> engines(at_first_.all.begin() + 1, at_first_.all.end());
  const auto look = [&] {
    return std::array{scheduled({daemon_->pid()}), scheduled(engines), scheduled({honest_.pid()})};
  };
  const auto before = look();
  const std::uint64_t attacks = board_->attacks_made();
  const Seconds length = round_length(settings_.minutes);
  board_->round = ++rounds_;
  tend_for(length);
  board_->round = 0;
  Round round = measured(phase);
  round.attacks = board_->attacks_made() - attacks;
  const auto after = look();
  const auto per_second = [&](std::size_t whose, double Scheduled::*what) {
    return (after[whose].*what - before[whose].*what) / length.count();
  };
  round.keeper_ran = per_second(0, &Scheduled::ran);
  round.engines_ran = per_second(1, &Scheduled::ran);
  round.waited = per_second(1, &Scheduled::waited) + per_second(2, &Scheduled::waited);
  print(round);
  return round;
}

void Campaign::play_sets() {
  std::printf(
      "round  phase  attacks  requests  first token p50, p99 (ms)  end p50, p99 (ms)  processors: "
      "keeper, "
      "engines, waited for\n");
  const auto end = Clock::now() + Seconds(settings_.minutes * 60);
  do {
    auto& set = sets_.emplace_back();
    for (const Phase phase : kOrders[(sets_.size() - 1) % std::size(kOrders)])
      set[static_cast<std::size_t>(phase)] = play(phase);
  } while (Clock::now() < end);
}

void Campaign::stop_in_the_storm() {
  enter(Phase::storm);
  tend_for(Seconds(2));
  operator_ = ChildProcess();
  board_->is_over = true;  // from here on the honest client may be refused
  const UniqueFd pidfd = pidfd_of(daemon_->pid()).value();
  const auto start = Clock::now();
  signal_process(daemon_->pid(), SIGTERM);
  pollfd ended{pidfd.get(), POLLIN, 0};
  const bool has_ended = poll(&ended, 1, 30'000) == 1;
  if (has_ended) stop_seconds_ = Seconds(Clock::now() - start).count();
  has_ended ? daemon_->stop() : daemon_->kill();
  enemies_->kill_all();
  honest_ = ChildProcess();
}

// -- what was measured ----------------------------------------------------------------------------

/// What was measured in the last round.
Campaign::Round Campaign::measured(Phase phase) const {
  std::vector<double> first, whole;
  const Samples& samples = board_->requests;
  for (std::size_t i = samples.count.load(std::memory_order_acquire); i-- > 0;) {
    const Sample& sample = samples.all[i];
    if (sample.round != 0 && sample.round < rounds_) break;
    if (sample.round != rounds_) continue;
    first.push_back(sample.first_ms);
    whole.push_back(sample.whole_ms);
  }
  Round round;
  round.phase = phase;
  round.requests = first.size();
  round.first_p50 = median(first);
  round.first_p99 = quantile(first, 0.99);
  round.whole_p50 = median(whole);
  round.whole_p99 = quantile(whole, 0.99);
  return round;
}

void Campaign::print(const Round& round) const {
  std::printf("%5u  %-5s  %7lu  %8zu  %11.2f %11.2f  %8.2f %8.2f  %8.2f %8.2f %8.2f\n", rounds_,
              name_of(round.phase), round.attacks, round.requests, round.first_p50, round.first_p99,
              round.whole_p50, round.whole_p99, round.keeper_ran, round.engines_ran, round.waited);
  std::fflush(stdout);
}

bool Campaign::only_honest_clients(const Json& status) const {
  return std::all_of(status["clients"].begin(), status["clients"].end(),
                     [&](const Json& client) { return client["pid"] == honest_.pid(); });
}

std::string Campaign::log_text() const { return logs_.read("kvhived.log"); }

void Campaign::print_attacks() const {
  std::printf("attacks made:\n");
  for (std::size_t i = 0; i < all_attacks().size(); ++i)
    std::printf("  %8lu  %-4s %s\n", board_->attacks[i].load(), all_attacks()[i].line,
                all_attacks()[i].name);
  std::printf("  %8lu  enemies died, %lu times one stopped\n", enemies_->deaths(),
              enemies_->stops());
}

// -- the verdict ----------------------------------------------------------------------------------

void Campaign::judge_speed(Verdict& verdict) const {
  const auto compare = [&](const std::string& what, double Round::*value, Phase phase,
                           bool is_promise) {
    std::vector<double> ratios;
    for (const auto& set : sets_) {
      const Round& other = set[static_cast<std::size_t>(phase)];
      const Round& storm = set[static_cast<std::size_t>(Phase::storm)];
      if (other.requests != 0) ratios.push_back(storm.*value / (other.*value));
    }
    const bool is_judged = is_promise && ratios.size() >= kEnoughSets;
    const Interval ratio = median_with_interval(ratios, settings_.seed);
    verdict.add(what + ", storm / " + name_of(phase) +
                    (is_promise ? text_of(", at most %.2f", kMostRatio) : ""),
                text_of("%.3f, 95 %% interval %.3f to %.3f, %zu sets%s", ratio.middle, ratio.low,
                        ratio.high, ratios.size(), is_judged ? "" : " (shown only)"),
                !is_judged || ratio.low <= kMostRatio);
  };
  for (const Phase phase : {Phase::decoy, Phase::calm}) {
    const bool is_promise = phase == Phase::decoy;
    compare("first token p50", &Round::first_p50, phase, is_promise);
    compare("first token p99", &Round::first_p99, phase, is_promise);
    compare("end p50", &Round::whole_p50, phase, is_promise);
    compare("end p99", &Round::whole_p99, phase, is_promise);
  }
}

void Campaign::judge_harm(Verdict& verdict) const {
  const auto words = [](const Complaints& complaints) {
    return complaints.count == 0
               ? std::string("none")
               : std::to_string(complaints.count) + ", first: " + complaints.first.data();
  };
  verdict.add("engines and stewards that died, and of the decoy",
              text_of("%d, %d", at_last_.restarts - at_first_.restarts, decoys_restarts_),
              at_last_.restarts == at_first_.restarts && at_last_.all == at_first_.all &&
                  decoys_restarts_ == 0);
  verdict.add("attacks that crashed their own process", std::to_string(enemies_->crashes()),
              enemies_->crashes() == 0);
  verdict.add("complaints of the honest client",
              words(board_->honest) +
                  text_of(" (%zu requests, %lu tokens compared, slowest connect %.1f ms)",
                          board_->requests.count.load(), board_->checked_tokens.load(),
                          static_cast<double>(board_->slowest_connect_us) / 1000),
              board_->honest.count == 0);
  double slowest = 0;
  for (std::size_t i = 0; i < board_->commands.count; ++i)
    slowest = std::max<double>(slowest, board_->commands.all[i].whole_ms);
  verdict.add("complaints of the operator",
              words(board_->operators) + text_of(" (%zu commands, the slowest %.0f ms)",
                                                 board_->commands.count.load(), slowest),
              board_->operators.count == 0 && slowest < kMostSecondsOfACommand * 1000);
  verdict.add("fsck after the storms", is_fsck_clean_ ? "clean" : "not clean", is_fsck_clean_);
}

void Campaign::judge_use(Verdict& verdict) const {
  constexpr std::size_t kOfAll = std::size_t{4} << 30;  // ChannelQuota::of_all
  verdict.add("memory of the keeper: before + 16 MiB at most",
              text_of("before %.1f, most %.1f, after %.1f MiB", mib(before_.keeper_bytes),
                      mib(most_.keeper_bytes), mib(after_.keeper_bytes)),
              most_.keeper_bytes <= before_.keeper_bytes + kKeeperSlack);
  verdict.add("memory of an engine: before + channels + 64 MiB at most",
              text_of("before %.1f, most %.1f, after %.1f MiB", mib(before_.engine_bytes),
                      mib(most_.engine_bytes), mib(after_.engine_bytes)),
              most_.engine_bytes <= before_.engine_bytes + most_.channel_bytes + kEngineSlack);
  verdict.add(
      "channels: 4 GiB in all, 1 GiB for a user at most",
      text_of("most %.0f MiB in all, %.0f for a user, %zu at a time", mib(most_.channel_bytes),
              mib(most_.channel_bytes_of_user), most_.connections),
      most_.channel_bytes <= kOfAll && most_.channel_bytes_of_user <= kOfAll / 4);
  const auto descriptors = [&](const char* whose, std::size_t before, std::size_t most,
                               std::size_t after) {
    verdict.add(std::string("descriptors of ") + whose + ": as before, once the enemies have gone",
                text_of("before %zu, most %zu, after %zu", before, most, after), after <= before);
  };
  descriptors("the keeper", before_.keeper_descriptors, most_.keeper_descriptors,
              after_.keeper_descriptors);
  descriptors("an engine", before_.engine_descriptors, most_.engine_descriptors,
              after_.engine_descriptors);
  verdict.add("channels of enemies that have gone", were_channels_left_ ? "some left" : "closed",
              !were_channels_left_);
}

void Campaign::judge_end(Verdict& verdict) const {
  const std::string log = log_text();
  const auto lines = std::count(log.begin(), log.end(), '\n');
  verdict.add("SIGTERM in the middle of a storm: 1 s at most",
              stop_seconds_ < 0 ? "no end after 30 s" : text_of("%.3f s", stop_seconds_),
              stop_seconds_ >= 0 && stop_seconds_ <= kMostSecondsToStop);
  verdict.add("left after the end", left_.empty() ? "nothing" : left_, left_.empty());
  verdict.add("the log",
              text_of("%zu lines, %.1f KiB", static_cast<std::size_t>(lines),
                      static_cast<double>(log.size()) / 1024),
              true);
}

}  // namespace kvhive::testing
