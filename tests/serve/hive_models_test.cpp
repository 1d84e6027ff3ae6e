// Requests that were made for one model, and a daemon that serves another.

#include <gmock/gmock.h>

#include <boost/asio/executor_work_guard.hpp>
#include <optional>

#include "tests/serve/served.hpp"
#include "tools/serve/hive/hive.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HiveModels : public ::testing::Test {
 protected:
  /// The last that is told of a request for this model.
  Progress end_of(Hive& hive, Hive::ModelId model) {
    std::optional<Progress> end;
    hive.submit(request_of("In the beginning", 2), model, [&](const Progress& news) {
      if (news.reason != Finish::none) end = news;
    });
    const auto work = boost::asio::make_work_guard(loop_);
    loop_.restart();
    while (!end) loop_.run_one();
    return *end;
  }

  const Daemon daemon_;
  boost::asio::io_context loop_{1};
};

TEST_F(HiveModels, ARequestForAnotherModelIsRefused) {
  std::vector<Hive::ModelId> opened;
  Hive hive(
      loop_, {daemon_.socket()}, {}, "", [] { return Result<Hive::ModelId>(7); },
      [&](Hive::ModelId model) { opened.push_back(model); });
  EXPECT_EQ(end_of(hive, 7).reason, Finish::length);
  const Progress refused = end_of(hive, 8);
  EXPECT_EQ(refused.reason, Finish::error);
  EXPECT_EQ(refused.error.code, ErrorCode::not_running);
  EXPECT_THAT(refused.error.text, HasSubstr("started anew with another model"));
  EXPECT_EQ(end_of(hive, 7).reason, Finish::length);
  EXPECT_THAT(opened, ElementsAre(7, 7));
}

/// Another daemon has taken the place of the one that was asked.
TEST_F(HiveModels, AChannelThatWasOpenedInBetweenIsNotUsed) {
  Hive::ModelId served = 1;
  Hive hive(loop_, {daemon_.socket()}, {}, "", [&] { return Result<Hive::ModelId>(served++); });
  const Progress refused = end_of(hive, 1);
  EXPECT_EQ(refused.error.code, ErrorCode::not_running);
  EXPECT_THAT(refused.error.text, HasSubstr("another daemon was started"));
}

TEST_F(HiveModels, WhatIsNotKnownIsNotCompared) {
  Hive hive(loop_, {daemon_.socket()}, {}, "");
  EXPECT_EQ(end_of(hive, 8).reason, Finish::length);
}

/// Of one channel, which is small: what does not fit into it is refused while it is in use, and
/// gets another in its place when it is idle. Meanwhile others are served.
class HiveRoom : public HiveModels {
 protected:
  static GenerateRequest large() {
    GenerateRequest request = request_of("In the beginning", 2);
    request.most_text_bytes = std::size_t{3} << 20;
    return request;
  }
  Hive::Key submit(const GenerateRequest& request, std::optional<Progress>& end) {
    return hive_.submit(request, 0, [&end](const Progress& news) {
      if (news.reason != Finish::none) end = news;
    });
  }
  void run_until(const std::function<bool()>& is_reached) {
    const auto work = boost::asio::make_work_guard(loop_);
    loop_.restart();
    while (!is_reached()) loop_.run_one();
  }

  explicit HiveRoom(std::size_t channel_bytes = std::size_t{1} << 20)
      : hive_(loop_, {daemon_.socket()}, {.channels = 1, .channel_bytes = channel_bytes}, "") {}

  Hive hive_;
};

TEST_F(HiveRoom, ARequestThatNoChannelWillEverHoldHoldsUpNobody) {
  std::optional<Progress> running, refused, small;
  const Hive::Key first = submit(request_of("In the beginning", 1500), running);
  run_until([&] { return hive_.running() == 1; });
  submit(large(), refused);
  submit(request_of("And God said", 2), small);
  run_until([&] { return refused && small; });
  EXPECT_EQ(refused->error.code, ErrorCode::overloaded);
  EXPECT_EQ(small->reason, Finish::length);
  EXPECT_FALSE(running);
  hive_.cancel(first);
  submit(large(), refused = std::nullopt);
  run_until([&] { return refused.has_value(); });
  EXPECT_EQ(refused->reason, Finish::length) << refused->error.text;
  EXPECT_EQ(hive_.channels(), 1u);
}

/// Little room for what waits.
TEST_F(HiveModels, ListsThatWaitCountWithThePrompts) {
  Hive hive(loop_, {daemon_.socket()}, {.channels = 1, .waiting_bytes = std::size_t{1} << 20}, "");
  GenerateRequest request = request_of("In the beginning", 1);
  request.allowed_token_ids.assign((std::size_t{1} << 18) + 1, 300);
  std::optional<Progress> refused;
  hive.submit(request, 0, [&](const Progress& news) { refused = news; });
  const auto work = boost::asio::make_work_guard(loop_);
  while (!refused) loop_.run_one();
  EXPECT_EQ(refused->error.code, ErrorCode::overloaded);
}

TEST_F(HiveModels, WhatIsCancelledNoLongerTakesRoomOfThoseThatWait) {
  Hive hive(loop_, {daemon_.socket()}, {.channels = 1, .waiting_bytes = std::size_t{1} << 20}, "");
  GenerateRequest request = request_of("In the beginning", 1);
  request.allowed_token_ids.assign(std::size_t{200'000}, 300);
  for (int i = 0; i < 3; ++i) hive.cancel(hive.submit(request, 0, [](const Progress&) {}));
  std::optional<Progress> told;
  hive.submit(request, 0, [&](const Progress& news) { told = news; });
  const auto work = boost::asio::make_work_guard(loop_);
  while (!told) loop_.run_one();
  EXPECT_NE(told->error.code, ErrorCode::overloaded) << told->error.text;
}

class HiveOfFourMib : public HiveRoom {
 protected:
  HiveOfFourMib() : HiveRoom(std::size_t{4} << 20) {}
};

/// One waits for room in the channel, and others that need less do not wait behind it.
TEST_F(HiveOfFourMib, ARequestThatWaitsForRoomHoldsUpNoneThatNeedsLess) {
  GenerateRequest most = request_of("In the beginning", 1500);
  most.most_text_bytes = std::size_t{2} << 20;
  std::optional<Progress> first, second, small;
  const Hive::Key key = submit(most, first);
  run_until([&] { return hive_.running() == 1; });
  const Hive::Key waiting = submit(most, second);
  submit(request_of("And God said", 2), small);
  run_until([&] { return small.has_value(); });
  EXPECT_EQ(small->reason, Finish::length);
  EXPECT_EQ(hive_.waiting(), 1u);
  hive_.cancel(key);
  run_until([&] { return hive_.running() == 1 && hive_.waiting() == 0; });
  hive_.cancel(waiting);
}

}  // namespace
}  // namespace kvhive::testing
