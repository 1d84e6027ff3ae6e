// Measures how a running daemon of several engines serves one client with many requests, against as
// many clients as engines, each with its share of the requests at an engine of its own. The two
// take turns; the figures are of each round, and the medians of the rounds' ratios.
//
// Usage: bench_hive [--brief]   (the daemon has engines 0 .. 3)

#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/check.hpp"
#include "kvhive/client.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

constexpr std::uint32_t kEngines = 4;

[[noreturn]] void fail(const ClientError& error) {
  std::fprintf(stderr, "bench_hive: %s\n", error.text.c_str());
  std::exit(1);
}

GenerateRequest request_of(std::uint32_t tokens, std::size_t salt) {
  GenerateRequest request;
  for (std::size_t i = 0; i < 64; ++i)
    request.prompt_tokens.push_back(static_cast<TokenId>((i * 31 + salt * 7919) % 1900 + 1));
  request.max_tokens = tokens;
  request.ignore_eos = true;
  return request;
}

Client connect(std::optional<std::uint32_t> engine) {
  ClientOptions options;
  options.engine = engine;
  options.channel_bytes = std::size_t{16} << 20;
  auto client = Client::connect(options);
  if (!client) fail(client.error());
  return std::move(*client);
}

/// What one round shows; several threads add to it.
struct Round {
  std::mutex mutex;
  Latencies first_token;
  std::map<std::uint32_t, std::size_t> tokens;  ///< by engine
};

/// Submits all requests at once, and reads them to their ends.
void serve(Client& client, const std::vector<GenerateRequest>& requests, Round& round) {
  struct Open {
    Clock::time_point submitted;
    bool has_begun = false;
  };
  std::map<RequestId, Open> open;
  Latencies first_token;
  std::map<std::uint32_t, std::size_t> tokens;
  for (const GenerateRequest& request : requests) {
    const auto now = Clock::now();
    auto number = client.submit(request);
    if (!number) fail(number.error());
    open[*number].submitted = now;
  }
  while (!open.empty()) {
    if (auto woken = client.wait(); !woken) fail(woken.error());
    for (auto entry = open.begin(); entry != open.end();) {
      const auto news = client.read(entry->first);
      if (!news) fail(news.error());
      if (news->reason == Finish::error) fail(news->error);
      if (!news->tokens.empty()) {
        if (!std::exchange(entry->second.has_begun, true))
          first_token.add(nanoseconds_since(entry->second.submitted));
        tokens[news->engine.value_or(kEngines)] += news->tokens.size();
      }
      entry = news->reason != Finish::none ? open.erase(entry) : std::next(entry);
    }
  }
  const std::lock_guard lock(round.mutex);
  round.first_token.add(first_token);
  for (const auto& [engine, count] : tokens) round.tokens[engine] += count;
}

/// \param clients  one, or one for each engine
double run(std::vector<Client>& clients, const std::vector<GenerateRequest>& requests,
           Round& round) {
  return seconds_of([&] {
    std::vector<std::jthread> threads;
    const std::size_t each = requests.size() / clients.size();
    for (std::size_t i = 0; i < clients.size(); ++i)
      threads.emplace_back([&, i] {
        const auto first = requests.begin() + static_cast<std::ptrdiff_t>(i * each);
        serve(clients[i], {first, first + static_cast<std::ptrdiff_t>(each)}, round);
      });
  });
}

/// The least and the greatest share of an engine, as parts of an even share.
std::pair<double, double> shares(const Round& round) {
  std::size_t all = 0, least = ~std::size_t{0}, most = 0;
  for (const auto& [engine, count] : round.tokens) all += count;
  for (std::uint32_t engine = 0; engine < kEngines; ++engine) {
    const auto found = round.tokens.find(engine);
    const std::size_t count = found == round.tokens.end() ? 0 : found->second;
    least = std::min(least, count);
    most = std::max(most, count);
  }
  const double even = static_cast<double>(all) / kEngines;
  return {static_cast<double>(least) / even, static_cast<double>(most) / even};
}

void measure(int rounds, std::size_t count, std::uint32_t tokens) {
  std::vector<Client> one, each;
  one.push_back(connect(std::nullopt));
  for (std::uint32_t engine = 0; engine < kEngines; ++engine) each.push_back(connect(engine));
  std::printf(
      "One client's %zu requests of %u tokens over %u engines / four clients at one engine each\n",
      count, tokens, kEngines);
  std::printf("  %5s  %21s  %21s  %15s  %13s\n", "round", "first token p50, ms",
              "first token p99, ms", "all, s", "engines' shares");
  std::vector<double> p50, p99, all;
  for (int i = 0; i < rounds; ++i) {
    std::vector<GenerateRequest> requests;
    for (std::size_t r = 0; r < count; ++r)
      requests.push_back(request_of(tokens, static_cast<std::size_t>(i) * count + r));
    Round shared, pinned;
    const bool is_shared_first = i % 2 == 0;
    double shared_s = 0, pinned_s = 0;
    if (is_shared_first) shared_s = run(one, requests, shared);
    for (GenerateRequest& request : requests) request.prompt_tokens.front() += 1;  // no prefix hits
    pinned_s = run(each, requests, pinned);
    if (!is_shared_first) {
      for (GenerateRequest& request : requests) request.prompt_tokens.front() += 1;
      shared_s = run(one, requests, shared);
    }
    const auto ms = [](const Round& round, double q) {
      return round.first_token.quantile_us(q) / 1e3;
    };
    p50.push_back(ms(shared, 0.5) / ms(pinned, 0.5));
    p99.push_back(ms(shared, 0.99) / ms(pinned, 0.99));
    all.push_back(shared_s / pinned_s);
    const auto [least, most] = shares(shared);
    std::printf("  %5d  %10.1f / %8.1f  %10.1f / %8.1f  %6.2f / %6.2f  %5.2f .. %4.2f\n", i + 1,
                ms(shared, 0.5), ms(pinned, 0.5), ms(shared, 0.99), ms(pinned, 0.99), shared_s,
                pinned_s, least, most);
  }
  std::printf("  median of the ratios: p50 %.2f, p99 %.2f, all %.2f\n", median(p50), median(p99),
              median(all));
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  kvhive::bench::measure(is_brief ? 2 : 11, is_brief ? 32 : 256, is_brief ? 16 : 128);
}
