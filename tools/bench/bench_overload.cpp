// What a running daemon does when three domains want four times what it can do. First its capacity
// is measured: as many requests under way as keep it busy. Then each domain submits a third of four
// times that rate, whatever becomes of its requests.
//
// Usage: bench_overload [--brief]   The daemon has --socket-access everybody, --max-queued-tokens,
// and shares for the users 60001, 60002, 60003 with the weights 1, 2, 4. This program plays these
// users, so it needs root.

#include <grp.h>
#include <unistd.h>

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
      if (news->reason == Finish::error)
        refused(news->error, entry->second);
      else if (news->reason != Finish::none)
        ++completed;
      entry = news->reason != Finish::none ? open_.erase(entry) : std::next(entry);
    }
  }
  void wait(std::chrono::milliseconds most) {
    if (auto woken = client_.wait(most); !woken) fail(woken.error().text);
  }
  std::size_t under_way() const { return open_.size(); }

  std::size_t completed = 0, tokens = 0, not_submitted = 0, without_hint = 0;
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

struct Capacity {
  double per_second = 0;            ///< requests
  double per_processor_second = 0;  ///< of the engines
};

/// Keeps some requests under way. Returns what was done in the second half.
Capacity capacity(Domain& domain, Seconds time) {
  constexpr std::size_t kUnderWay = 64;
  const auto start = Clock::now();
  struct Half {
    Clock::time_point at;
    std::size_t completed;
    double used;
  };
  std::optional<Half> half;
  while (Clock::now() - start < time) {
    while (domain.under_way() < kUnderWay) domain.submit();
    domain.wait(std::chrono::milliseconds(100));
    domain.read();
    if (!half && Clock::now() - start > time / 2)
      half = Half{Clock::now(), domain.completed, seconds_of_engines()};
  }
  const auto completed = static_cast<double>(domain.completed - half->completed);
  return {completed / Seconds(Clock::now() - half->at).count(),
          completed / (seconds_of_engines() - half->used)};
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
}

void measure(Seconds calm, Seconds overload) {
  std::deque<Domain> domains;
  for (std::size_t i = 0; i < kDomains; ++i)
    domains.emplace_back(connect_as(kFirstUser + static_cast<uid_t>(i)));
  std::printf("Overload: %zu domains, requests of %zu + %u tokens\n", kDomains, kPromptTokens,
              kOutputTokens);
  const auto [rate, by_engines] = capacity(domains.front(), calm);
  std::printf("  capacity (one domain): %.1f requests/s\n", rate);
  while (domains.front().under_way() != 0) domains.front().wait({}), domains.front().read();
  domains.front().completed = domains.front().tokens = 0;

  const double before = static_cast<double>(memory_of_engines());
  double most = before, used = -seconds_of_engines();
  {
    std::vector<std::jthread> threads;
    for (Domain& domain : domains)
      threads.emplace_back([&] { flood(domain, rate * kOverload / kDomains, overload); });
    for (const auto end = Clock::now() + overload; Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      most = std::max(most, static_cast<double>(memory_of_engines()));
    }
  }
  used += seconds_of_engines();
  std::size_t completed = 0, refused = 0, not_submitted = 0, without_hint = 0, tokens = 0;
  Latencies refusals;
  double weights = 0;
  for (std::size_t i = 0; i < kDomains; ++i) {
    completed += domains[i].completed;
    tokens += domains[i].tokens;
    not_submitted += domains[i].not_submitted;
    without_hint += domains[i].without_hint;
    refused += domains[i].refusals.count();
    refusals.add(domains[i].refusals);
    weights += kWeights[i];
  }
  std::printf(
      "  %.0f x that for %.0f s: goodput %.2f of it; %zu refused as overloaded (%zu without "
      "a hint), told after p50 %.1f, p99 %.1f ms; %zu found their channel full\n",
      kOverload, overload.count(), static_cast<double>(completed) / overload.count() / rate,
      refused, without_hint, refusals.quantile_us(0.5) / 1e3, refusals.quantile_us(0.99) / 1e3,
      not_submitted);
  std::printf("  requests for each second of the engines' processor time: %.2f of the capacity's\n",
              static_cast<double>(completed) / used / by_engines);
  for (std::size_t i = 0; i < kDomains; ++i)
    std::printf("  user %u: %.3f of all tokens, weight %.3f: %.3f of its share\n",
                kFirstUser + static_cast<uid_t>(i),
                static_cast<double>(domains[i].tokens) / static_cast<double>(tokens),
                kWeights[i] / weights,
                static_cast<double>(domains[i].tokens) / static_cast<double>(tokens) /
                    (kWeights[i] / weights));
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
  kvhive::bench::measure(Seconds(is_brief ? 1 : 20), Seconds(is_brief ? 1 : 60));
}
