// What one client with requests under way notices of what happens to a running daemon: an engine is
// added, one is stopped, another client never reads. Each happens several times.
//
// Usage: bench_changes [--brief]   The daemon has engines 0 .. 3. This program uses the kvhive
// beside it to add, remove and list engines, so it needs to be of the daemon's user or root.

#include <signal.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvhive/client.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/new_request.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

using Seconds = std::chrono::duration<double>;
using nlohmann::json;

constexpr std::size_t kUnderWay = 48;
constexpr std::uint32_t kPromptTokens = 64, kOutputTokens = 32;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_changes: %s\n", text.c_str());
  std::exit(1);
}

Client connect() {
  auto client = Client::connect({.channel_bytes = std::size_t{16} << 20});
  if (!client) fail(client.error().text);
  return std::move(*client);
}

/// What the command prints with --format json.
json kvhive(const std::string& words) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kvhive";
  const std::string command = program.string() + " " + words + " --format json";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  for (std::array<char, 4096> piece{};
       const auto n = fread(piece.data(), 1, piece.size(), pipe.get());)
    text.append(piece.data(), n);
  auto told = json::parse(text, nullptr, false);
  if (told.is_discarded()) fail(command + ": " + text);
  return told;
}

/// A request's first token: when it was submitted, and after how long it came, from which engine.
struct FirstToken {
  Clock::time_point submitted;
  std::uint64_t ns = 0;
  std::uint32_t engine = 0;
};

/// A client that keeps as many requests under way, in a thread of its own.
class Load {
 public:
  Load() : thread_([this](const std::stop_token& end) { run(end); }) {}

  /// The first tokens of requests that were submitted so late and so early.
  std::vector<FirstToken> submitted_between(Clock::time_point from, Clock::time_point to) {
    const std::lock_guard lock(mutex_);
    std::vector<FirstToken> found;
    for (const FirstToken& first : first_)
      if (first.submitted >= from && first.submitted < to) found.push_back(first);
    return found;
  }
  /// Tokens that came so late and so early, by engine.
  std::map<std::uint32_t, double> tokens_between(Clock::time_point from, Clock::time_point to) {
    const std::lock_guard lock(mutex_);
    std::map<std::uint32_t, double> sums;
    for (const auto& [when, engine, count] : tokens_)
      if (when >= from && when < to) sums[engine] += static_cast<double>(count);
    return sums;
  }
  /// How many requests that were submitted in this time have had no token yet.
  std::size_t without_token(Clock::time_point from, Clock::time_point to) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(open_.begin(), open_.end(), [&](const auto& entry) {
          return !entry.second.has_begun && entry.second.submitted >= from &&
                 entry.second.submitted < to;
        }));
  }

 private:
  struct Open {
    Clock::time_point submitted;
    bool has_begun = false;
  };
  struct Came {
    Clock::time_point when;
    std::uint32_t engine;
    std::size_t count;
  };

  void run(const std::stop_token& end) {
    Client client = connect();
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        while (!end.stop_requested() && open_.size() < kUnderWay) {
          const auto now = Clock::now();
          const auto id = client.submit(new_request(kPromptTokens, kOutputTokens));
          if (!id) fail(id.error().text);
          open_[*id].submitted = now;
        }
        if (open_.empty()) return;
      }
      if (auto woken = client.wait(); !woken) fail(woken.error().text);
      read(client);
    }
  }

  void read(Client& client) {
    const std::lock_guard lock(mutex_);
    for (auto entry = open_.begin(); entry != open_.end();) {
      const auto news = client.read(entry->first);
      if (!news) fail(news.error().text);
      if (news->reason == Finish::error) fail(news->error.text);
      const std::uint32_t engine = news->engine.value_or(~0u);
      if (!news->tokens.empty()) {
        tokens_.push_back({Clock::now(), engine, news->tokens.size()});
        if (!std::exchange(entry->second.has_begun, true))
          first_.push_back(
              {entry->second.submitted, nanoseconds_since(entry->second.submitted), engine});
      }
      entry = news->reason != Finish::none ? open_.erase(entry) : std::next(entry);
    }
  }

  std::mutex mutex_;
  std::map<RequestId, Open> open_;
  std::vector<FirstToken> first_;
  std::vector<Came> tokens_;
  std::jthread thread_;
};

double quantile_ms(std::vector<FirstToken> first, double q) {
  if (first.empty()) return 0;
  std::sort(first.begin(), first.end(), [](auto& a, auto& b) { return a.ns < b.ns; });
  const auto at = static_cast<std::size_t>(q * static_cast<double>(first.size() - 1));
  return static_cast<double>(first[at].ns) / 1e6;
}

double pace = 1;  ///< of all that follows; less if it is only to be seen that it works

Clock::duration so_long(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(Seconds(seconds * pace));
}
void wait(double seconds) { std::this_thread::sleep_for(so_long(seconds)); }

/// One engine's part of the tokens, of an even part.
double share_of(std::uint32_t engine, const std::map<std::uint32_t, double>& tokens,
                std::size_t engines) {
  double all = 0;
  for (const auto& [number, count] : tokens) all += count;
  const auto found = tokens.find(engine);
  return found == tokens.end() ? 0 : found->second / all * static_cast<double>(engines);
}

void add_engines(int rounds) {
  std::printf("An engine is added while a client keeps %zu requests under way\n", kUnderWay);
  std::printf("  %5s  %26s  %s\n", "round", "its first token after, ms",
              "its tokens, of an even share, in the 1st, 2nd, 3rd second");
  Load load;
  wait(1);
  std::vector<double> first_second;
  for (int i = 0; i < rounds; ++i) {
    const json added = kvhive("engine add");
    const auto serves = Clock::now();
    const std::uint32_t engine = added.at("engine");
    const std::size_t engines = kvhive("pool procs").at("engines").size();
    wait(3.1);
    std::array<double, 3> shares{};
    for (std::size_t s = 0; s < shares.size(); ++s)
      shares[s] = share_of(engine,
                           load.tokens_between(serves + so_long(static_cast<double>(s)),
                                               serves + so_long(static_cast<double>(s + 1))),
                           engines);
    double first = 3'000;
    for (const FirstToken& token :
         load.submitted_between(serves - std::chrono::seconds(1), serves + std::chrono::seconds(3)))
      if (token.engine == engine)
        first = std::min(first, Seconds(token.submitted - serves).count() * 1e3 +
                                    static_cast<double>(token.ns) / 1e6);
    first_second.push_back(shares[0]);
    std::printf("  %5d  %26.0f  %.2f  %.2f  %.2f\n", i + 1, first, shares[0], shares[1], shares[2]);
    kvhive("engine remove " + std::to_string(engine));
    wait(1);
  }
  std::printf("  median of its share in the first second: %.2f\n\n", median(first_second));
}

void stop_engines(int rounds, double seconds) {
  std::printf("An engine is stopped (SIGSTOP) for %.0f s under the same load\n", seconds * pace);
  std::printf("  %5s  %38s  %34s  %s\n", "round", "submitted meanwhile: without a token yet",
              "first token p50, p99, longest, ms", "before: p50, p99");
  Load load;
  wait(2);
  for (int i = 0; i < rounds; ++i) {
    const json engines = kvhive("pool procs").at("engines");
    const pid_t pid = engines.at(static_cast<std::size_t>(i) % engines.size()).at("pid");
    const auto calm = Clock::now();
    wait(3);
    const auto stopped = Clock::now();
    kill(pid, SIGSTOP);
    wait(seconds);
    const auto until = Clock::now() - so_long(1);
    const std::size_t without = load.without_token(stopped, until);
    const auto meanwhile = load.submitted_between(stopped, until);
    const auto before = load.submitted_between(calm, stopped);
    kill(pid, SIGCONT);
    std::printf("  %5d  %30zu of %5zu  %10.1f  %10.1f  %10.1f  %8.1f  %8.1f\n", i + 1, without,
                meanwhile.size() + without, quantile_ms(meanwhile, 0.5),
                quantile_ms(meanwhile, 0.99), quantile_ms(meanwhile, 1), quantile_ms(before, 0.5),
                quantile_ms(before, 0.99));
    wait(2);
  }
  std::printf("\n");
}

/// A client with many requests, who reads their answers or never does. What is measured begins when
/// the burst of its prompts is over, which is the same for both and would be most of the p99.
void crowd(bool reads, Load& load, double& p50, double& p99) {
  Client client = connect();
  std::vector<RequestId> open;
  for (int i = 0; i < 192; ++i) {
    const auto id = client.submit(new_request(kPromptTokens, 128));
    if (!id) fail(id.error().text);
    open.push_back(*id);
  }
  const auto from = Clock::now() + std::chrono::seconds(2), end = from + so_long(4);
  const auto is_measured = [&] {
    return Clock::now() >= end && load.without_token(from, end) == 0;
  };
  while (!is_measured()) {
    if (!reads || open.empty()) {
      wait(0.05);
      continue;
    }
    if (auto woken = client.wait(std::chrono::milliseconds(50)); !woken) fail(woken.error().text);
    std::erase_if(open, [&](RequestId id) {
      const auto news = client.read(id);
      if (!news) fail(news.error().text);
      return news->reason != Finish::none;
    });
  }
  const auto first = load.submitted_between(from, end);
  p50 = quantile_ms(first, 0.5);
  p99 = quantile_ms(first, 0.99);
}

/// Where the middle 95 of 100 medians are, if the pairs are drawn again.
std::pair<double, double> interval(const std::vector<double>& ratios) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::size_t> any(0, ratios.size() - 1);
  std::vector<double> medians;
  for (int i = 0; i < 2'000; ++i) {
    std::vector<double> drawn;
    for (std::size_t k = 0; k < ratios.size(); ++k) drawn.push_back(ratios[any(random)]);
    medians.push_back(median(std::move(drawn)));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[50], medians[1'949]};
}

void never_read(int pairs) {
  std::printf(
      "Beside it a client with 192 requests of 128 tokens: one that never reads / one that does\n");
  std::vector<double> p50, p99;
  Load load;
  wait(1);
  for (int i = 0; i < pairs; ++i) {
    std::array<double, 2> of_p50{}, of_p99{};  // never, reads
    for (const bool reads : {i % 2 == 0, i % 2 != 0}) {
      crowd(reads, load, of_p50[reads], of_p99[reads]);
      wait(1);
    }
    p50.push_back(of_p50[0] / of_p50[1]);
    p99.push_back(of_p99[0] / of_p99[1]);
  }
  const auto [p50_low, p50_high] = interval(p50);
  const auto [p99_low, p99_high] = interval(p99);
  std::printf("  %d pairs: first token p50 %.2f (%.2f to %.2f), p99 %.2f (%.2f to %.2f)\n", pairs,
              median(p50), p50_low, p50_high, median(p99), p99_low, p99_high);
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  if (is_brief) pace = 0.2;
  add_engines(is_brief ? 1 : 7);
  stop_engines(is_brief ? 1 : 4, 10);
  never_read(is_brief ? 1 : 12);
}
