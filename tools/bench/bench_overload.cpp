// What a running daemon does when three domains want four times what it can do. By turns its
// capacity for these domains is measured (together they have as many requests under way as keep it
// busy), and each submits a third of four times that rate, whatever becomes of its requests. Only
// what stands side by side in a round is compared: the machine's speed changes in seconds.
//
// Usage: bench_overload [--brief]   The daemon has --socket-access everybody, --max-queued-tokens,
// and shares for the users 60001, 60002, 60003 with the weights 1, 2, 4. This program plays these
// users, so it needs root.

#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kvhive/client.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/new_request.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

constexpr uid_t kFirstUser = 60'001;
constexpr std::size_t kDomains = 3;
constexpr double kWeights[kDomains] = {1, 2, 4};
constexpr std::size_t kPromptTokens = 64;
constexpr std::uint32_t kOutputTokens = 32;
constexpr double kOverload = 4;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_overload: %s\n", text.c_str());
  std::exit(1);
}

Client connect_as(uid_t user) {
  if (setgroups(0, nullptr) != 0 || seteuid(user) != 0) fail("cannot act as another user");
  auto client = Client::connect({.channel_bytes = std::size_t{16} << 20});
  if (seteuid(0) != 0) fail("cannot act as root again");
  if (!client) fail(client.error().text);
  return std::move(*client);
}

/// One domain's client, and what it has seen.
class Domain {
 public:
  explicit Domain(Client client) : client_(std::move(client)) {}

  void submit() {
    const auto id = client_.submit(new_request(kPromptTokens, kOutputTokens));
    if (id)
      open_.emplace(*id, Clock::now());
    else if (id.error().code == ErrorCode::pool_exhausted)
      ++not_submitted;
    else
      fail(id.error().text);
  }
  void read() {
    for (auto entry = open_.begin(); entry != open_.end();) {
      const auto news = client_.read(entry->first);
      if (!news) fail(news.error().text);
      tokens += news->tokens.size();
      if (news->reason == Finish::error) refused(news->error, entry->second);
      entry = news->reason != Finish::none ? open_.erase(entry) : std::next(entry);
    }
  }
  void wait(std::chrono::milliseconds most) {
    if (auto woken = client_.wait(most); !woken) fail(woken.error().text);
  }
  std::size_t under_way() const { return open_.size(); }

  std::atomic<std::size_t> tokens{0};
  std::size_t not_submitted = 0, without_hint = 0;
  Latencies refusals;

 private:
  void refused(const ClientError& error, Clock::time_point submitted) {
    if (error.code != ErrorCode::overloaded) fail(error.text);
    without_hint += error.retry_after.count() == 0;
    refusals.add(nanoseconds_since(submitted));
  }

  Client client_;
  std::map<RequestId, Clock::time_point> open_;
};

using Seconds = std::chrono::duration<double>;

/// The directories in /proc of all engines on this machine.
std::vector<std::filesystem::path> engines() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (name == "kvhive-engine") found.push_back(entry.path());
  }
  return found;
}

/// Resident bytes of their own.
std::size_t memory_of_engines() {
  std::size_t pages = 0;
  for (const auto& engine : engines()) {
    std::size_t all = 0, resident = 0, shared = 0;
    std::ifstream(engine / "statm") >> all >> resident >> shared;
    pages += resident - shared;
  }
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Processor time that they have used.
double seconds_of_engines() {
  double ticks = 0;
  for (const auto& engine : engines()) {
    std::string line;
    std::getline(std::ifstream(engine / "stat"), line);
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, kernel = 0;
    fields >> user >> kernel;
    ticks += user + kernel;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// Tokens generated, by domain.
using Tokens = std::array<double, kDomains>;

Tokens tokens_of(const std::deque<Domain>& domains) {
  Tokens tokens{};
  for (std::size_t i = 0; i < kDomains; ++i) tokens[i] = static_cast<double>(domains[i].tokens);
  return tokens;
}

struct Generated {
  Tokens tokens;
  double seconds = 0;
  double processor_seconds = 0;  ///< of the engines

  double all() const { return std::accumulate(tokens.begin(), tokens.end(), 0.0); }
  double per_second() const { return all() / seconds; }
  double per_processor_second() const { return all() / processor_seconds; }
};

class Stretch {
 public:
  explicit Stretch(const std::deque<Domain>& domains)
      : domains_(domains), tokens_(tokens_of(domains)) {}
  Generated until_now() const {
    Generated generated{tokens_of(domains_), Seconds(Clock::now() - start_).count(),
                        seconds_of_engines() - used_};
    for (std::size_t i = 0; i < kDomains; ++i) generated.tokens[i] -= tokens_[i];
    return generated;
  }

 private:
  const std::deque<Domain>& domains_;
  Clock::time_point start_ = Clock::now();
  double used_ = seconds_of_engines();
  Tokens tokens_;
};

void read_to_the_end(Domain& domain) {
  while (domain.under_way() != 0) domain.wait(std::chrono::milliseconds(100)), domain.read();
}

/// Keeps some requests under way, and then reads to the end.
void keep_busy(Domain& domain, std::size_t under_way, Seconds time) {
  const auto start = Clock::now();
  while (Clock::now() - start < time) {
    while (domain.under_way() < under_way) domain.submit();
    domain.wait(std::chrono::milliseconds(20));
    domain.read();
  }
  read_to_the_end(domain);
}

/// Submits at a fixed rate, and then reads to the end.
void flood(Domain& domain, double rate, Seconds time) {
  const auto start = Clock::now();
  for (std::size_t submitted = 0; Clock::now() - start < time;) {
    const auto due = static_cast<std::size_t>(Seconds(Clock::now() - start).count() * rate);
    for (; submitted < due; ++submitted) domain.submit();
    domain.wait(std::chrono::milliseconds(5));
    domain.read();
  }
  read_to_the_end(domain);
}

/// What comes of `act(domain)` of all at once; the first third of the time does not count.
template <class Act>
Generated together(std::deque<Domain>& domains, Seconds time, double& most_memory, const Act& act) {
  std::vector<std::jthread> threads;
  for (Domain& domain : domains) threads.emplace_back([&domain, &act] { act(domain); });
  std::this_thread::sleep_for(time / 3);
  const Stretch counted(domains);
  std::this_thread::sleep_for(time * 2 / 3);
  const Generated generated = counted.until_now();
  most_memory = std::max(most_memory, static_cast<double>(memory_of_engines()));
  return generated;
}

Generated capacity(std::deque<Domain>& domains, Seconds time, double& most_memory) {
  constexpr std::size_t kUnderWay = 64;
  return together(domains, time, most_memory,
                  [time](Domain& domain) { keep_busy(domain, kUnderWay / kDomains, time); });
}

/// \param rate  requests that they submit in a second together
Generated overload(std::deque<Domain>& domains, double rate, Seconds time, double& most_memory) {
  return together(domains, time, most_memory,
                  [=](Domain& domain) { flood(domain, rate / kDomains, time); });
}

void print_spread(const char* what, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  std::printf("  %s: %.2f of the capacity's (%.2f to %.2f)\n", what, median(ratios), ratios.front(),
              ratios.back());
}

void print_shares(const Tokens& tokens) {
  const double weights = std::accumulate(std::begin(kWeights), std::end(kWeights), 0.0);
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  for (std::size_t i = 0; i < kDomains; ++i) {
    const double part = tokens[i] / all;
    const double share = kWeights[i] / weights;
    std::printf("  user %u: %.3f of all tokens, weight %.3f: %.3f of its share\n",
                kFirstUser + static_cast<uid_t>(i), part, share, part / share);
  }
}

void print_refusals(const std::deque<Domain>& domains) {
  std::size_t refused = 0, not_submitted = 0, without_hint = 0;
  Latencies all;
  for (const Domain& domain : domains) {
    not_submitted += domain.not_submitted;
    without_hint += domain.without_hint;
    refused += domain.refusals.count();
    all.add(domain.refusals);
  }
  std::printf(
      "  %zu refused as overloaded (%zu without a hint), told after p50 %.1f, p99 %.1f ms; %zu "
      "found "
      "their channel full\n",
      refused, without_hint, all.quantile_us(0.5) / 1e3, all.quantile_us(0.99) / 1e3,
      not_submitted);
}

void measure(int rounds, Seconds calm, Seconds overloaded) {
  std::deque<Domain> domains;
  for (std::size_t i = 0; i < kDomains; ++i)
    domains.emplace_back(connect_as(kFirstUser + static_cast<uid_t>(i)));
  std::printf(
      "Overload: %zu domains, requests of %zu + %u tokens, %.0f x the capacity, %d rounds of %.0f "
      "s\n",
      kDomains, kPromptTokens, kOutputTokens, kOverload, rounds, overloaded.count());
  double after_first = 0, most = 0;
  std::vector<double> goodput, by_processor_time;
  Tokens overloaded_tokens{};
  for (int round = 0; round < rounds; ++round) {
    const Generated can = capacity(domains, calm, most);
    const double wanted = can.per_second() / kOutputTokens * kOverload;
    const Generated does = overload(domains, wanted, overloaded, most);
    const Generated still_can = capacity(domains, calm, most);  // it changes meanwhile
    goodput.push_back(2 * does.per_second() / (can.per_second() + still_can.per_second()));
    by_processor_time.push_back(2 * does.per_processor_second() /
                                (can.per_processor_second() + still_can.per_processor_second()));
    for (std::size_t i = 0; i < kDomains; ++i) overloaded_tokens[i] += does.tokens[i];
    if (round == 0) after_first = most;
  }
  print_spread("tokens a second", goodput);
  print_spread("for each second of the engines' processor time", by_processor_time);
  print_refusals(domains);
  print_shares(overloaded_tokens);
  std::printf("  engines' own memory: %.1f MiB in the first round, at most %.1f MiB\n",
              after_first / 0x1p20, most / 0x1p20);
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (geteuid() != 0) {
    std::printf("Overload: NOT RUN: needs root, to play several users\n");
    return 0;
  }
  using kvhive::bench::Seconds;
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  is_brief ? kvhive::bench::measure(1, Seconds(1), Seconds(1))
           : kvhive::bench::measure(9, Seconds(3), Seconds(7));
}
