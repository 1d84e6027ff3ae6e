// Whole daemons whose engines share one client's requests.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "tests/support/child_process.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/requests.hpp"
#include "tests/tools/stopped_engine.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Key;
using ::testing::UnorderedElementsAre;

constexpr std::uint32_t kTokens = 24;

/// One client's results, in the requests' order.
std::vector<Progress> answers_of(const Daemon& daemon, const std::vector<GenerateRequest>& asked) {
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  return generate_all(clients, asked);
}

std::map<std::uint32_t, std::size_t> requests_of_engines(const std::vector<Progress>& results) {
  std::map<std::uint32_t, std::size_t> counts;
  for (const Progress& result : results) ++counts[result.engine.value()];
  return counts;
}

TEST(Hive, OneClientsRequestsAreServedByAllEnginesWithTheSameTokens) {
  const Daemon daemon({"--engines", "3", "--kv-cache-memory-bytes", "32M"});
  const auto asked = short_requests(48, kTokens);
  std::vector<Client> lone;
  lone.push_back(daemon.connect(0));
  const auto expected = generate_all(lone, asked);
  ASSERT_THAT(requests_of_engines(expected), UnorderedElementsAre(Key(0u)));
  // An engine that gets no processor for a while has its turns taken by others. So not every round
  // has to be even.
  const auto is_even = [&] {
    const auto shared = answers_of(daemon, asked);
    for (std::size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(ids(shared[i]), ids(expected[i])) << i;
    const auto counts = requests_of_engines(shared);
    return counts.size() == 3 && std::all_of(counts.begin(), counts.end(),
                                             [](const auto& count) { return count.second >= 8; });
  };
  EXPECT_TRUE(eventually(is_even, kHang)) << "an engine never has as many as 8 of 48";
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Hive, AStoppedEnginesTurnsAreTakenByOthers) {
  const Daemon daemon;
  const auto asked = short_requests(16, kTokens);
  const auto expected = answers_of(daemon, asked);
  {
    const StoppedEngine stopped(daemon, 0);
    const auto results = answers_of(daemon, asked);
    EXPECT_THAT(requests_of_engines(results), UnorderedElementsAre(Key(1u)));
    for (std::size_t i = 0; i < asked.size(); ++i)
      EXPECT_EQ(ids(results[i]), ids(expected[i])) << i;
  }
  EXPECT_TRUE(eventually(
      [&] {
        return requests_of_engines(answers_of(daemon, short_requests(8, kTokens))).size() == 2;
      },
      kHang))
      << "it does not take its turns again";
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// It runs one request and has others waiting when it is stopped.
TEST(Hive, WhatWaitsAtAStoppedEngineIsServedByOthersAndNotTwice) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--max-num-seqs", "1"});
  const auto asked = short_requests(12, 200);
  const auto expected = answers_of(daemon, asked);
  Client client = daemon.connect();
  std::vector<RequestId> numbers;
  for (const GenerateRequest& request : asked) numbers.push_back(*client.submit(request));
  ASSERT_TRUE(eventually([&] { return daemon.running(0) == 1; }, kHang));
  std::vector<Progress> results(asked.size());
  const auto read = [&] {
    std::size_t ended = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (results[i].reason == Finish::none) {
        Progress news = *client.read(numbers[i]);
        news.tokens.insert(news.tokens.begin(), results[i].tokens.begin(), results[i].tokens.end());
        results[i] = std::move(news);
      }
      ended += results[i].reason != Finish::none;
    }
    return ended;
  };
  {
    const StoppedEngine stopped(daemon, 0);
    EXPECT_TRUE(eventually([&] { return read() >= asked.size() - 1; }, kHang))
        << "all but the one that runs there";
  }
  EXPECT_TRUE(eventually([&] { return read() == asked.size(); }, kHang));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(results[i].reason, Finish::length) << results[i].error.text;
    EXPECT_EQ(ids(results[i]), ids(expected[i])) << i;
  }
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// A client that wants one engine only keeps that full. Others wait in its queue, not for ever at
/// the stopped one, which seems to have room.
TEST(Hive, WhereOneEngineIsStoppedAndTheOtherFullRequestsWaitInItsQueue) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--max-num-seqs", "2"});
  std::atomic<bool> is_over{false};
  std::thread flood([&] {
    Client client = daemon.connect(0);
    std::set<RequestId> open;
    while (!is_over) {
      while (open.size() < 6) open.insert(*client.submit(short_requests(1, 200).front()));
      EXPECT_TRUE(client.wait());
      std::erase_if(open, [&](RequestId id) { return client.read(id)->reason != Finish::none; });
    }
  });
  Client honest = daemon.connect();
  ASSERT_TRUE(eventually([&] { return daemon.engine(0)["running"] == 2; }, kHang));
  {
    const StoppedEngine stopped(daemon, 1);
    for (int i = 0; i < 3; ++i) {
      const RequestId number = *honest.submit(short_requests(1, 4).front());
      Finish reason = Finish::none;
      EXPECT_TRUE(eventually(
          [&] {
            (void)honest.wait(std::chrono::milliseconds(20));
            return (reason = honest.read(number)->reason) != Finish::none;
          },
          std::chrono::seconds(20)))
          << i;
    }
  }
  is_over = true;
  flood.join();
}

TEST(Hive, AnEngineThatDiesUnderManyRequestsCostsNone) {
  const Daemon daemon;
  const auto asked = short_requests(32, 120);
  const auto expected = answers_of(daemon, asked);
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  ChildProcess killer([&] {
    for (std::uint32_t i = 0; i < kMostTakeovers; ++i) {  // more, and it counts as poisonous
      const std::uint32_t victim = i % 2;
      if (eventually([&] {
            const Json engine = daemon.engine(victim);
            return !engine.is_null() && engine["running"] > 0;
          }))
        signal_process(daemon.engine(victim)["pid"].get<pid_t>(), SIGKILL);
    }
  });
  for (int round = 0; round < 3; ++round) {
    const auto results = generate_all(clients, asked);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      EXPECT_EQ(results[i].reason, Finish::length) << results[i].error.text;
      EXPECT_EQ(ids(results[i]), ids(expected[i])) << i;
    }
  }
  killer.kill_and_wait();
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
}

/// Reads streams to their ends, again and again, and compares each with what it should be.
class Streams {
 public:
  Streams(Client client, std::vector<GenerateRequest> asked,
          std::vector<std::vector<TokenId>> right)
      : client_(std::move(client)), asked_(std::move(asked)), right_(std::move(right)) {}

  void run(const std::atomic<bool>& is_over) {
    while (!is_over) round();
  }
  std::size_t complete() const { return complete_; }
  const std::vector<std::string>& wrong() const { return wrong_; }
  /// Milliseconds between two tokens of a stream, or before its first.
  const std::vector<double>& gaps_ms() const { return gaps_ms_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    std::size_t prompt;
    std::vector<TokenId> tokens;
    Clock::time_point last;
  };

  void round() {
    std::map<RequestId, Stream> open;
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      const auto number = client_.submit(asked_[i]);
      if (!number) return wrong_.push_back("submit: " + number.error().text);
      open.emplace(*number, Stream{i, {}, Clock::now()});
    }
    while (!open.empty()) {
      if (const auto woken = client_.wait(); !woken)
        return wrong_.push_back("wait: " + woken.error().text);
      for (auto entry = open.begin(); entry != open.end();)
        entry = read(entry->first, entry->second) ? open.erase(entry) : std::next(entry);
    }
  }

  bool read(RequestId number, Stream& stream) {
    const Progress news = *client_.read(number);
    if (!news.tokens.empty()) {
      const auto now = Clock::now();
      gaps_ms_.push_back(std::chrono::duration<double, std::milli>(now - stream.last).count());
      stream.last = now;
    }
    for (const OutputToken& token : news.tokens) stream.tokens.push_back(token.token);
    if (news.reason == Finish::none) return false;
    if (news.reason != Finish::length)
      wrong_.push_back(std::string(to_string(news.reason)) + ": " + news.error.text);
    else if (stream.tokens != right_[stream.prompt])
      wrong_.push_back("other tokens");
    else
      ++complete_;
    return true;
  }

  Client client_;
  std::vector<GenerateRequest> asked_;
  std::vector<std::vector<TokenId>> right_;
  std::size_t complete_ = 0;
  std::vector<std::string> wrong_;
  std::vector<double> gaps_ms_;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<std::size_t>(q * double(values.size() - 1))];
}

/// What happens to a daemon while streams run.
struct Trouble {
  const char* name;
  std::chrono::milliseconds pause;  ///< from one to the next
  std::function<bool(const Daemon& daemon)> make;
};

bool kill_any_process(const Daemon& daemon, std::mt19937& random) {
  const Json status = daemon.status();
  const std::size_t victim = random() % 6;
  const Json process = victim < 4    ? status["engines"][victim]
                       : victim == 4 ? status["steward"]
                                     : status["keeper"];
  const pid_t pid = process.value("pid", 0);
  return pid > 0 && kill(pid, SIGKILL) == 0;
}

/// 200 streams at a time, of 8 clients. KVHIVE_HIVE_SECONDS=120 lets each trouble last so long.
TEST(Hive, StreamsOutliveRandomDeathsAndTakeOversTokenForToken) {
  constexpr std::size_t kClients = 8, kStreams = 25;
  const char* const asked_for = std::getenv("KVHIVE_HIVE_SECONDS");
  const std::chrono::seconds duration(asked_for != nullptr ? std::atoi(asked_for) : 5);
  const Daemon daemon({"--engines", "4", "--kv-cache-memory-bytes", "64M"});
  const auto asked = short_requests(kStreams, 64);
  std::vector<std::vector<TokenId>> right;
  for (const Progress& result : answers_of(daemon, asked)) right.push_back(ids(result));

  std::mt19937 random(20261123);
  const auto serve = [&](const Trouble& trouble) {
    std::vector<Streams> all;
    for (std::size_t i = 0; i < kClients; ++i) all.emplace_back(daemon.connect(), asked, right);
    std::atomic<bool> is_over{false};
    std::vector<std::jthread> threads;
    for (Streams& streams : all) threads.emplace_back([&] { streams.run(is_over); });
    const auto end = std::chrono::steady_clock::now() + duration;
    std::size_t troubles = 0;
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(trouble.pause);
      troubles += trouble.make(daemon) ? 1 : 0;
    }
    is_over = true;
    threads.clear();
    std::size_t complete = 0;
    std::vector<double> gaps;
    for (const Streams& streams : all) {
      complete += streams.complete();
      gaps.insert(gaps.end(), streams.gaps_ms().begin(), streams.gaps_ms().end());
      EXPECT_TRUE(streams.wrong().empty()) << streams.wrong().front();
    }
    std::printf("| %s | %zu | %zu | %.1f | %.1f | %.1f | %.0f |\n", trouble.name, troubles,
                complete, quantile(gaps, 0.5), quantile(gaps, 0.99), quantile(gaps, 0.999),
                quantile(gaps, 1));
    EXPECT_GT(complete, 0u);
  };
  const auto device = [&] { return daemon.stat()["tiers"]["device"]; };
  const auto published = [&] {
    const Json now = device();
    return now["idle"].get<std::size_t>() + now["held"].get<std::size_t>();
  };
  const std::size_t before = published();
  const bool is_short = duration < std::chrono::seconds(30);
  std::printf("| | how many | streams | gap p50, ms | p99 | p99.9 | longest |\n");
  serve({"undisturbed", std::chrono::milliseconds(100), [](const Daemon&) { return false; }});
  serve({"deaths", std::chrono::milliseconds(is_short ? 500 : 2000),
         [&](const Daemon& hive) { return kill_any_process(hive, random); }});
  serve({"take-overs", std::chrono::milliseconds(is_short ? 1000 : 5000), [](const Daemon& hive) {
           return run("kvhived", {"--take-over", "--socket", hive.socket()}).exit_code == 0;
         }});
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
  if (daemon.stat()["evicted_blocks"] == 0) {
    EXPECT_GE(published(), before) << "published blocks are lost";
  }
}

TEST(Hive, AnEngineThatJoinsTakesItsTurns) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  ASSERT_TRUE(client.generate(request_of("And", 4)).has_value());
  const pid_t guest =
      spawn(program("kvhive-engine"), {"--model", kDemoModel, "--socket", daemon.socket(),
                                       "--threads", "1", "--index", "7", "--log-level", "error"});
  EXPECT_TRUE(eventually(
      [&] {
        std::vector<Client> clients;
        clients.push_back(daemon.connect());
        return requests_of_engines(generate_all(clients, short_requests(8, 4))).size() == 2;
      },
      kHang));
  signal_process(guest, SIGKILL);
  waitpid(guest, nullptr, 0);
  EXPECT_EQ(client.generate(request_of("And", 4))->tokens.size(), 4u);
}

TEST(Hive, AClientThatWantsOneEngineHasItAlone) {
  const Daemon daemon;
  std::vector<Client> clients;
  clients.push_back(daemon.connect(1));
  EXPECT_THAT(requests_of_engines(generate_all(clients, short_requests(8, kTokens))),
              UnorderedElementsAre(Key(1u)));
  EXPECT_EQ(daemon.status()["clients"][0]["engines"], Json({1}));
}

}  // namespace
}  // namespace kvhive::testing
