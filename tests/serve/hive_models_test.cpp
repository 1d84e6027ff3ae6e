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

}  // namespace
}  // namespace kvhive::testing
