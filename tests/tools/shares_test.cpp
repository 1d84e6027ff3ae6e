// What a daemon's domains get when together they want more than there is. Domains are users here;
// tests that play several users are skipped without root, and say so.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/check.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/engine_death.hpp"
#include "tests/tools/requests.hpp"
#include "tests/tools/start_attempt.hpp"
#include "tests/tools/stopped_engine.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

/// One client with requests under way.
class Load {
 public:
  explicit Load(Client client) : client_(std::move(client)) {}

  void submit(std::size_t count, std::uint32_t tokens) {
    for (std::size_t i = 0; i < count; ++i)
      open_.push_back(
          client_.submit(request_of("Request " + std::to_string(i) + " of many", tokens)).value());
  }
  /// Reads what is new.
  void read() {
    std::erase_if(open_, [this](RequestId id) {
      const Progress news = client_.read(id).value();
      tokens_ += news.tokens.size();
      if (news.reason == Finish::none) return false;
      if (news.reason == Finish::error) errors_.push_back(news.error);
      return true;
    });
  }
  std::size_t under_way() const { return open_.size(); }
  std::size_t tokens() const { return tokens_; }
  const std::vector<ClientError>& errors() const { return errors_; }

 private:
  Client client_;
  std::vector<RequestId> open_;
  std::size_t tokens_ = 0;
  std::vector<ClientError> errors_;
};

class Shares : public ::testing::Test {
 protected:
  void start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--engines", "1", "--kv-cache-memory-bytes", "32M",
                               "--socket-access", "everybody"});
    daemon_.emplace(flags);
    ASSERT_EQ(chmod(daemon_->directory().c_str(), 0711), 0);
  }
  Load load_of(uid_t user) {
    const PlayingUser playing(user);
    return Load(daemon_->connect());
  }

  std::optional<Daemon> daemon_;
};

TEST_F(Shares, WhatTheQueueDoesNotTakeIsRefusedAtOnceAndServedLater) {
  start({"--max-num-seqs", "2", "--max-queued-tokens", "60"});
  Load load(daemon_->connect());
  load.submit(40, 200);
  EXPECT_TRUE(eventually(
      [&] {
        load.read();
        return load.under_way() == 0;
      },
      kHang));
  ASSERT_FALSE(load.errors().empty()) << "40 requests of ten tokens do not fit into 60";
  EXPECT_LT(load.errors().size(), 40u);
  for (const ClientError& error : load.errors()) {
    EXPECT_EQ(error.code, ErrorCode::overloaded) << error.text;
    EXPECT_GT(error.retry_after.count(), 0);
    EXPECT_THAT(error.text, HasSubstr("try again in about"));
  }
  EXPECT_EQ(daemon_->stat()["overloaded_requests"], load.errors().size());
  Load again(daemon_->connect());
  again.submit(1, 10);
  EXPECT_TRUE(eventually([&] { return again.read(), again.under_way() == 0; }, kHang));
  EXPECT_EQ(again.tokens(), 10u);
}

TEST_F(Shares, TokensOfDomainsAreAsTheirWeights) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--max-num-seqs", "4", "--shares", "uid-60001=weight:1;uid-60002=weight:3"});
  Load alice = load_of(kAlice), bob = load_of(kBob);
  {
    const StoppedEngine stopped(*daemon_, 0);  // it finds the requests of both
    alice.submit(200, 20);
    bob.submit(200, 20);
  }
  EXPECT_TRUE(eventually(
      [&] {
        alice.read();
        bob.read();
        return bob.tokens() >= 3'000;
      },
      kHang));
  const StoppedEngine stopped(*daemon_, 0);  // both are read at the same time
  alice.read();
  bob.read();
  ASSERT_GT(bob.under_way(), 0u) << "both have requests that wait, all the time";
  EXPECT_NEAR(static_cast<double>(bob.tokens()) / static_cast<double>(alice.tokens()), 3, 0.3);
}

TEST_F(Shares, ADomainRunsNoMoreRequestsThanItsShareAllows) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--shares", "*=max-num-seqs:2;uid-60002=weight:1"});
  Load alice = load_of(kAlice);
  alice.submit(12, 100);
  std::uint64_t most = 0;
  EXPECT_TRUE(eventually(
      [&] {
        most = std::max(most, daemon_->running(0));
        return alice.read(), alice.under_way() == 0;
      },
      kHang));
  EXPECT_EQ(most, 2u);
  Load bob = load_of(kBob);
  bob.submit(12, 400);
  EXPECT_TRUE(eventually([&] { return daemon_->running(0) > 2; }));
}

TEST_F(Shares, OneDomainsQueueIsFullAndTheOthersIsNot) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--max-num-seqs", "1", "--shares", "uid-60001=max-queued-tokens:50"});
  Load alice = load_of(kAlice), bob = load_of(kBob);
  alice.submit(20, 100);
  bob.submit(20, 5);
  EXPECT_TRUE(eventually(
      [&] {
        alice.read();
        bob.read();
        return alice.under_way() + bob.under_way() == 0;
      },
      kHang));
  ASSERT_FALSE(alice.errors().empty());
  EXPECT_THAT(alice.errors().front().text, HasSubstr("of this domain"));
  EXPECT_TRUE(bob.errors().empty()) << bob.errors().front().text;
}

// -- blocks

class BlockShares : public Shares {
 protected:
  /// `blocks` device blocks of 16 tokens, the null block not counted.
  void start_with(std::uint32_t blocks, const std::string& shares, const char* engines = "2") {
    daemon_.emplace(std::vector<std::string>{"--engines", engines, "--num-gpu-blocks-override",
                                             std::to_string(blocks + 1), "--max-model-len", "512",
                                             "--socket-access", "everybody", "--shares", shares});
    ASSERT_EQ(chmod(daemon_->directory().c_str(), 0711), 0);
  }
  Client client_of(uid_t user) {
    const PlayingUser playing(user);
    return daemon_->connect();
  }
  Json blocks_of(const char* domain) { return daemon_->stat()["domains"][domain]; }

  /// Alice uses two prompts again and again, and Bob ever new ones, so many each time. Returns the
  /// percentage of Alice's prompt tokens that were found in the pool.
  double hits_of_alice(int flood) {
    Client alice = client_of(kAlice), bob = client_of(kBob);
    std::uint64_t cached = 0, tokens = 0;
    std::size_t next = 100;
    for (int round = 0; round < 12; ++round) {
      for (const std::size_t number : {0, 1}) {
        const Progress done = *alice.generate(request_number(number, 4));
        EXPECT_EQ(done.reason, Finish::length) << done.error.text;
        if (round == 0) continue;
        cached += done.cached_tokens;
        tokens += done.prompt_tokens;
      }
      for (int i = 0; i < flood; ++i)
        EXPECT_EQ(bob.generate(request_number(next++, 4))->reason, Finish::length);
    }
    return 100.0 * static_cast<double>(cached) / static_cast<double>(tokens);
  }
};

TEST_F(BlockShares, AtItsMinimumADomainKeepsItsHitsWhileAnotherFloods) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start_with(64, "uid-60001=min-blocks:50%");
  const double alone = hits_of_alice(0), with = hits_of_alice(8);
  const Json alice = blocks_of("uid-60001");
  EXPECT_EQ(alice["min_blocks"], 32);
  EXPECT_EQ(alice["max_blocks"], nullptr);
  EXPECT_LE(alice["device_resident"], 32);
  EXPECT_TRUE(daemon_->fsck_is_clean());
  EXPECT_EQ(daemon_->cli({"pool", "fsck", "--format", "json"}).json()["miscounted"], 0);
  start_with(64, "uid-60001=max-blocks:100%");
  const double without = hits_of_alice(8);
  std::printf(
      "hit rate of a domain: alone %.1f %%, beside a flood %.1f %% with a minimum of half "
      "the pool, %.1f %% without\n",
      alone, with, without);
  EXPECT_NEAR(with, alone, 1);
  EXPECT_LT(without, alone - 50);
}

TEST_F(BlockShares, ADomainHasNoMoreThanItsMaximumAndOthersTheRest) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start_with(100, "uid-60001=max-blocks:40%", "1");  // several engines may be one request ahead
  Client bob = client_of(kBob);
  for (const std::size_t number : {1, 2}) (void)bob.generate(request_number(number, 4));
  const std::uint64_t bobs = blocks_of("uid-60002")["device_resident"];
  std::vector<Client> clients;
  clients.push_back(client_of(kAlice));
  std::vector<GenerateRequest> requests;
  for (std::size_t i = 0; i < 40; ++i) requests.push_back(request_number(100 + i, 4));
  for (const Progress& done : generate_all(clients, requests))
    EXPECT_EQ(done.reason, Finish::length) << done.error.text << ": preempted, but served";
  const Json alices = blocks_of("uid-60001");
  EXPECT_EQ(alices["max_blocks"], 40);
  EXPECT_LE(alices["device_resident"], 40);
  EXPECT_GT(alices["device_resident"], 30);
  EXPECT_EQ(blocks_of("uid-60002")["device_resident"], bobs) << "of Bob nothing was evicted";
  EXPECT_THAT(daemon_->cli({"pool", "stat"}).out, HasSubstr("device held"));
}

TEST_F(BlockShares, ADeadEnginesBlocksAreCountedRightAfterItsSweep) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start_with(100, "uid-60001=min-blocks:20,max-blocks:60");
  Load alice = load_of(kAlice);
  for (int i = 0; i < 3; ++i) {
    // A new engine opens its channels a moment after it serves; what came before is another's.
    ASSERT_TRUE(eventually([&] {
      alice.read();
      if (alice.under_way() < 20) alice.submit(5, 200);
      return daemon_->running(0) > 0;
    }));
    ASSERT_TRUE(kill_and_await_next(*daemon_, 0));
  }
  EXPECT_TRUE(eventually([&] { return alice.read(), alice.under_way() == 0; }, kHang));
  EXPECT_TRUE(eventually([&] {
    return daemon_->cli({"pool", "fsck", "--format", "json"}).json()["miscounted"] == 0;
  }));
}

TEST_F(BlockShares, MinimumsBeyondThePoolAreRefusedAtTheStart) {
  const StartAttempt daemon({"--num-gpu-blocks-override", "65", "--max-model-len", "512",
                             "--shares", "uid-1=min-blocks:50;uid-2=min-blocks:25%"});
  ASSERT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(),
              HasSubstr("'min-blocks:25%' of 'uid-2' makes 66 blocks with the minimums before it, "
                        "but the device tier has 64 blocks; lower min-blocks"));
}

}  // namespace
}  // namespace kvhive::testing
