// What a daemon's domains get when together they want more than there is. Domains are users here;
// tests that play several users are skipped without root, and say so.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/check.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kHang = std::chrono::seconds(60);

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
  alice.submit(200, 20);
  bob.submit(200, 20);
  EXPECT_TRUE(eventually(
      [&] {
        alice.read();
        bob.read();
        return bob.tokens() >= 3'000;
      },
      kHang));
  ASSERT_GT(bob.under_way(), 0u) << "both have requests that wait, all the time";
  EXPECT_NEAR(static_cast<double>(bob.tokens()) / static_cast<double>(alice.tokens()), 3, 0.3);
}

TEST_F(Shares, ADomainRunsNoMoreRequestsThanItsShareAllows) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--shares", "*=max-num-seqs:2;uid-60002=weight:1"});
  Load alice = load_of(kAlice);
  alice.submit(12, 100);
  std::size_t most = 0;
  EXPECT_TRUE(eventually(
      [&] {
        most = std::max(most, daemon_->engine(0)["running"].get<std::size_t>());
        return alice.read(), alice.under_way() == 0;
      },
      kHang));
  EXPECT_EQ(most, 2u);
  Load bob = load_of(kBob);
  bob.submit(12, 400);
  EXPECT_TRUE(eventually([&] { return daemon_->engine(0)["running"].get<std::size_t>() > 2; }));
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

}  // namespace
}  // namespace kvhive::testing
