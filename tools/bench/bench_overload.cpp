// What a running daemon does when three domains want four times what it can do. By turns its
// capacity is measured (as many requests under way as keep it busy), and each domain submits a
// third of four times that rate, whatever becomes of its requests. Only what stands side by side in
// a round is compared: the machine's speed changes in seconds.
//
// Usage: bench_overload [--brief]   The daemon has --socket-access everybody, --max-queued-tokens,
// and shares for the users 60001, 60002, 60003 with the weights 1, 2, 4. This program plays these
// users, so it needs root.

#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
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

/// Tokens generated.
struct Rates {
  double per_second = 0;
  double per_processor_second = 0;  ///< of the engines
};

class Stretch {
 public:
  /// \param tokens  generated so far
  explicit Stretch(std::size_t tokens) : tokens_(tokens) {}
  Rates until_now(std::size_t tokens) const {
    const auto generated = static_cast<double>(tokens - tokens_);
    return {generated / Seconds(Clock::now() - start_).count(),
            generated / (seconds_of_engines() - used_)};
  }

 private:
  Clock::time_point start_ = Clock::now();
  double used_ = seconds_of_engines();
  std::size_t tokens_;
};

void read_to_the_end(Domain& domain) {
  while (domain.under_way() != 0) domain.wait(std::chrono::milliseconds(100)), domain.read();
}

/// Keeps some requests under way; the first third of the time does not count.
Rates capacity(Domain& domain, Seconds time) {
  constexpr std::size_t kUnderWay = 64;
  const auto start = Clock::now();
  std::optional<Stretch> counted;
  while (Clock::now() - start < time) {
    while (domain.under_way() < kUnderWay) domain.submit();
    domain.wait(std::chrono::milliseconds(20));
    domain.read();
    if (!counted && Clock::now() - start > time / 3) counted.emplace(domain.tokens);
  }
  const Rates rates = counted->until_now(domain.tokens);
  read_to_the_end(domain);
  return rates;
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

std::size_t tokens_of(const std::deque<Domain>& domains) {
  std::size_t tokens = 0;
  for (const Domain& domain : domains) tokens += domain.tokens;
  return tokens;
}

/// All at once, at so many requests a second together; the first third of the time does not count.
Rates overload(std::deque<Domain>& domains, double rate, Seconds time, double& most_memory) {
  std::vector<std::jthread> threads;
  for (Domain& domain : domains)
    threads.emplace_back([&domain, rate, time] { flood(domain, rate / kDomains, time); });
  std::this_thread::sleep_for(time / 3);
  const Stretch counted(tokens_of(domains));
  std::this_thread::sleep_for(time * 2 / 3);
  const Rates rates = counted.until_now(tokens_of(domains));
  most_memory = std::max(most_memory, static_cast<double>(memory_of_engines()));
  return rates;
}

void print_spread(const char* what, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  std::printf("  %s: %.2f of the capacity's (%.2f to %.2f)\n", what, median(ratios), ratios.front(),
              ratios.back());
}

void print_shares(const std::deque<Domain>& domains) {
  double weights = 0;
  for (const double weight : kWeights) weights += weight;
  const auto tokens = static_cast<double>(tokens_of(domains));
  for (std::size_t i = 0; i < kDomains; ++i) {
    const double part = static_cast<double>(domains[i].tokens) / tokens;
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
  Domain alone(connect_as(kFirstUser));
  std::printf(
      "Overload: %zu domains, requests of %zu + %u tokens, %.0f x the capacity, %d rounds of %.0f "
      "s\n",
      kDomains, kPromptTokens, kOutputTokens, kOverload, rounds, overloaded.count());
  const double before = static_cast<double>(memory_of_engines());
  double most = before;
  std::vector<double> goodput, by_processor_time;
  for (int round = 0; round < rounds; ++round) {
    const Rates can = capacity(alone, calm);
    const double wanted = can.per_second / kOutputTokens * kOverload;
    const Rates does = overload(domains, wanted, overloaded, most);
    const Rates still_can = capacity(alone, calm);  // it changes meanwhile
    goodput.push_back(2 * does.per_second / (can.per_second + still_can.per_second));
    by_processor_time.push_back(2 * does.per_processor_second /
                                (can.per_processor_second + still_can.per_processor_second));
  }
  print_spread("tokens a second", goodput);
  print_spread("for each second of the engines' processor time", by_processor_time);
  print_refusals(domains);
  print_shares(domains);
  std::printf("  engines' own memory: %.1f MiB before, at most %.1f MiB\n", before / 0x1p20,
              most / 0x1p20);
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
