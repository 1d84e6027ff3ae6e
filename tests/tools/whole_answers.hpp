#pragma once
// What whole-daemon tests compare: requests that share their starts, and all tokens of the answers.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/care/pool_report.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/signal_process.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

using Tokens = std::vector<std::vector<TokenId>>;

/// Prompts of 100 to 300 tokens with common starts; answers of `least` tokens, and up to three
/// `step`s more.
inline std::vector<GenerateRequest> overlapping_requests(std::size_t count, std::uint32_t least,
                                                         std::uint32_t step) {
  const std::string text = passage();
  std::vector<GenerateRequest> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(request_of(text.substr(i % 3 == 0 ? 0 : i * 37 % 600, 350 + i * 53 % 550),
                             least + static_cast<std::uint32_t>(i % 4) * step));
  return all;
}

/// A counter's sum over all processes, dead ones included.
inline std::uint64_t counted(const PoolMemory& pool, CounterName name) {
  return read_statistics(pool).totals[name];
}

/// Expects that all answers are whole.
inline Tokens tokens_of(const std::vector<Progress>& results) {
  Tokens tokens;
  for (const Progress& result : results) {
    EXPECT_EQ(result.reason, Finish::length) << result.error.text;
    tokens.push_back(ids(result));
  }
  return tokens;
}

/// All requests at once, to the engines 0 to engines - 1 in turn.
inline Tokens tokens_at_once(const Daemon& daemon, const std::vector<GenerateRequest>& requests,
                             std::uint32_t engines = 2) {
  std::vector<Client> clients;
  for (std::uint32_t engine = 0; engine < engines; ++engine)
    clients.push_back(daemon.connect(engine));
  return tokens_of(generate_all(clients, requests));
}

/// One request after another.
inline Tokens tokens_one_by_one(const Daemon& daemon,
                                const std::vector<GenerateRequest>& requests) {
  Client client = daemon.connect();
  std::vector<Progress> results;
  for (const GenerateRequest& request : requests) results.push_back(*client.generate(request));
  return tokens_of(results);
}

/// A process that kills engine 0 as soon as it runs a request, and ends. It starts none itself, as
/// short answers would be over meanwhile.
inline ChildProcess killer_of_running_engine(const Daemon& daemon) {
  return ChildProcess([pid = daemon.pid_of(0), pool = daemon.pool()] {
    const auto runs = [](const ProcessReport& process) {
      return process.index == 0 && process.counted["running"] > 0;
    };
    while (std::ranges::none_of(read_statistics(pool).processes, runs)) std::this_thread::yield();
    signal_process(pid, SIGKILL);
  });
}

/// What `compute` returns while engine 0 is killed: again until it had requests when it died.
/// Expects that nothing is left of it.
template <class Compute>
Tokens beside_a_death(const Daemon& daemon, Compute&& compute) {
  std::optional<Tokens> tokens;
  std::uint64_t lost = 0;
  for (int attempt = 0; attempt < 20 && lost == 0; ++attempt) {
    const pid_t victim = daemon.pid_of(0);
    ChildProcess killer = killer_of_running_engine(daemon);
    Tokens now = compute();
    EXPECT_TRUE(!tokens || *tokens == now);
    tokens = std::move(now);
    if (killer.kill_and_wait()) continue;  // it was not run in time
    EXPECT_TRUE(eventually([&] {
      const Json engine = daemon.status()["engines"][0], &end = engine["last_end"];
      if (engine["state"] != "serving" || end["pid"] != victim || end["requests"].is_null())
        return false;
      lost = end["requests"];
      return true;
    }));
  }
  EXPECT_GT(lost, 0u) << "no engine died while it had requests";
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }));
  return *tokens;
}

/// One client's requests at once.
inline Tokens tokens_beside_a_death(const Daemon& daemon,
                                    const std::vector<GenerateRequest>& requests) {
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  return beside_a_death(daemon, [&] { return tokens_of(generate_all(clients, requests)); });
}

}  // namespace kvhive::testing
