// The pinner of clients' requests. This process is keeper and client; the pinner's processes are
// real ones.

#include "tools/keeper/channels/request_pinner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <fstream>
#include <map>

#include "tests/support/merge_pages.hpp"
#include "tools/keeper/channels/page_pins.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class RequestPinnerTest : public ::testing::Test, public RequestPinner::Events {
 protected:
  void on_pinned(std::uint64_t channel, Expected<void> result) override {
    pinned_.emplace(channel, std::move(result));
    loop_.stop();
  }
  void wait_for(std::size_t count) {
    while (pinned_.size() < count) loop_.run();
  }

  EventLoop loop_ = EventLoop::create().value();
  std::map<std::uint64_t, Expected<void>> pinned_;
  RequestPinner pinner_{loop_, *this};
};

/// As the keeper makes a client's requests, and its client maps them.
struct Requests {
  ChannelMemory memory{create_empty_memory("requests", kManyExtents).value(), UniqueFd(),
                       make_pin_pipes(1, kManyExtents).value()};
  MappedMemory map =
      MappedMemory::map(memory.requests.get(), kManyExtents, Access::read_write, "").value();
};

TEST_F(RequestPinnerTest, AClientCannotHaveItsPinnedRequestsMerged) {
  if (!this_system_merges_pages()) GTEST_SKIP() << "NOT RUN: this system merges no pages";
  const Requests requests;
  // A client's tricks before the seal leave pages, holes and pages again.
  const UniqueFd& file = requests.memory.requests;
  ASSERT_TRUE(allocate_memory(file, 0, kHugePage, kHugePage, "requests"));
  free_memory(file, 0, 4096);
  ASSERT_TRUE(seal_against_new_writers(file.get(), "requests"));
  pinner_.pin(1, 0, requests.memory, kManyExtents);
  wait_for(1);
  ASSERT_TRUE(pinned_.at(1).has_value()) << pinned_.at(1).error().text;
  std::memset(requests.map.data(), 1, kManyExtents);
  EXPECT_THAT(merge_all(file), Each(EAGAIN));
}

TEST_F(RequestPinnerTest, AFileThatCannotBePinnedIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd writer(ends[1]);
  const ChannelMemory no_file{UniqueFd(ends[0]), UniqueFd(),
                              make_pin_pipes(1, kManyExtents).value()};
  pinner_.pin(1, 0, no_file, kManyExtents);
  wait_for(1);
  ASSERT_FALSE(pinned_.at(1).has_value());
  EXPECT_THAT(pinned_.at(1).error().text, HasSubstr("cannot be pinned"));
}

/// What the keeper decides happens when it is written down.
TEST_F(RequestPinnerTest, NothingIsPinnedWhileTheEventIsHandledThatAsksForIt) {
  const Requests requests;
  pinner_.pin(1, 0, requests.memory, kManyExtents);
  EXPECT_EQ(pinner_.count(), 0u);
  wait_for(1);
  EXPECT_TRUE(pinned_.at(1).has_value());
}

/// A fork for each connection would cost more than the connection.
TEST_F(RequestPinnerTest, OneProcessPinsOneFileAfterTheOther) {
  const std::vector<Requests> few(3);
  for (std::size_t i = 0; i < few.size(); ++i) {
    pinner_.pin(i, 0, few[i].memory, kManyExtents);
    wait_for(i + 1);
    EXPECT_TRUE(pinned_.at(i).has_value());
  }
  EXPECT_EQ(pinner_.count(), 1u);
}

TEST_F(RequestPinnerTest, WhenAProcessIsKilledTheNextIsStarted) {
  const Requests first, second;
  pinner_.pin(1, 0, first.memory, kManyExtents);
  wait_for(1);
  std::ifstream children("/proc/thread-self/children");
  for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
  while (pinner_.count() != 0) {
    loop_.after(std::chrono::milliseconds(1), [this] { loop_.stop(); });
    loop_.run();
  }
  pinner_.pin(2, 0, second.memory, kManyExtents);
  wait_for(2);
  EXPECT_TRUE(pinned_.at(2).has_value());
}

TEST_F(RequestPinnerTest, AllOfAUsersManyAreDoneInTheirTurn) {
  std::vector<Requests> many(20);
  for (std::size_t i = 0; i < many.size(); ++i) pinner_.pin(i, 7, many[i].memory, kManyExtents);
  wait_for(many.size());
  for (const auto& [channel, result] : pinned_) EXPECT_TRUE(result.has_value()) << channel;
  EXPECT_LE(pinner_.count(), 4u);
}

TEST_F(RequestPinnerTest, OfACancelledOneNothingIsTold) {
  const Requests first, second;
  pinner_.pin(1, 0, first.memory, kManyExtents);
  pinner_.pin(2, 0, second.memory, kManyExtents);
  pinner_.cancel(1);
  wait_for(1);
  EXPECT_EQ(pinned_.count(2), 1u);
  EXPECT_EQ(pinned_.count(1), 0u);
}

}  // namespace
}  // namespace kvhive::testing
