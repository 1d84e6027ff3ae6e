// The page's files and its JSON as a client gets them, beside a real daemon. What a browser makes
// of them: tests/page/.

#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <regex>

#include "tests/serve/served.hpp"
#include "tools/serve/page/page_files.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string header_in(const HttpReply& reply, const std::string& name) {
  std::smatch found;
  return std::regex_search(reply.head, found, std::regex(name + ": ([^\r]*)")) ? found[1].str()
                                                                               : "";
}

Json hive_of(const Service& service) { return service.ask(get("/hive.json")).json(); }

bool sees(const Service& service, const std::string& sight) {
  return eventually([&] { return hive_of(service)["sight"] == sight; }, kHang);
}

TEST(HivePage, TheFilesAreServedWithAStrictPolicy) {
  const Daemon daemon;
  const Service service(daemon.socket());
  for (const PageFile& file : page_files()) {
    const HttpReply reply = service.ask(get(std::string(file.path)));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, file.content);
    EXPECT_EQ(header_in(reply, "Content-Type"), file.content_type);
    EXPECT_THAT(header_in(reply, "Content-Security-Policy"),
                ::testing::StartsWith("default-src 'none'; script-src 'self';"));
    EXPECT_EQ(header_in(reply, "X-Content-Type-Options"), "nosniff");
  }
  EXPECT_EQ(service.ask(get("/page/nothing.js")).status, 404);
  const HttpReply refused = service.ask(post("/", "{}"));
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(header_in(refused, "Allow"), "GET, HEAD");
}

/// Whatever the policy says: nothing asks for it.
TEST(HivePage, NoFileNamesAnotherHostOrBringsScriptInItself) {
  for (const PageFile& file : page_files()) {
    std::string text(file.content);
    text = std::regex_replace(text, std::regex("http://www\\.w3\\.org/2000/svg"), "");
    EXPECT_THAT(text, Not(HasSubstr("://"))) << file.path;
    EXPECT_THAT(text, Not(HasSubstr("innerHTML ="))) << file.path;
    EXPECT_FALSE(
        std::regex_search(text, std::regex("<script(?![^>]* src=)|[ ]on[a-z]+=\"|style=\"")))
        << file.path;
  }
}

TEST(HivePage, AFileThatABrowserHasIsNotSentAgain) {
  const Daemon daemon;
  const Service service(daemon.socket());
  const HttpReply first = service.ask(get("/page/style.css"));
  const std::string tag = header_in(first, "ETag");
  ASSERT_FALSE(tag.empty());
  const HttpReply again = service.ask(
      "GET /page/style.css HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: " + tag + "\r\n\r\n");
  EXPECT_EQ(again.status, 304);
  EXPECT_TRUE(again.body.empty());
}

TEST(HivePage, TheHiveIsToldAndItsMapLosesNoBlock) {
  const Daemon daemon;
  const Service service(daemon.socket());
  ASSERT_TRUE(sees(service, "reading"));
  service.ask(
      post("/v1/completions",
           Json{{"prompt", "In the beginning"}, {"max_tokens", 60}, {"ignore_eos", true}}.dump()));
  ASSERT_TRUE(
      eventually([&] { return hive_of(service)["traffic"]["generated_tokens"] == 60; }, kHang));
  ASSERT_TRUE(eventually([&] { return hive_of(service)["pool"]["tiers"][0]["idle"] > 0; }, kHang));
  const Json hive = hive_of(service);
  EXPECT_EQ(hive["engines"].size(), 2u);
  EXPECT_EQ(hive["engines"][0]["state"], "serving");
  EXPECT_EQ(hive["keeper"], "answering");
  const Json& tier = hive["pool"]["tiers"][0];
  ASSERT_EQ(hive["map"]["views"].size(), 6u);
  for (const Json& view : hive["map"]["views"]) {
    std::uint64_t blocks = 0;
    for (const Json& category : view["categories"])
      blocks += category["blocks"].get<std::uint64_t>();
    EXPECT_EQ(blocks, tier["blocks"]) << view["by"];
  }
}

/// A hive in which nothing happens costs a browser's network nothing.
TEST(HivePage, AHiveThatHasNotChangedIsNotSentAgain) {
  const Daemon daemon;
  const Service service(daemon.socket());
  ASSERT_TRUE(sees(service, "reading"));
  EXPECT_TRUE(eventually(
      [&] {
        const std::string tag = header_in(service.ask(get("/hive.json")), "ETag");
        return service
                   .ask("GET /hive.json HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: " + tag +
                        "\r\n\r\n")
                   .status == 304;
      },
      kHang));
}

TEST(HivePage, TheHistoryGrowsAndAKilledEngineIsInIt) {
  const Daemon daemon;
  const Service service(daemon.socket());
  ASSERT_TRUE(sees(service, "reading"));
  const auto history = [&](std::uint64_t after) {
    return service.ask(get("/hive/history.json?after=" + std::to_string(after))).json();
  };
  ASSERT_TRUE(eventually([&] { return history(0)["last"] >= 3; }, kHang));
  EXPECT_LE(history(2)["seconds"].size(), history(0)["seconds"].size() - 2);
  signal_process(daemon.engine(0)["pid"], SIGKILL);
  EXPECT_TRUE(eventually(
      [&] {
        const Json ends = history(0)["engine_ends"];
        return ends.size() == 1 && ends[0]["engine"] == 0 &&
               ends[0]["seconds_until_back"].is_number();
      },
      kHang));
}

/// Not as it was seen a second before, but as steward and keeper know it.
TEST(HivePage, WhatAKilledEngineHadIsToldExactly) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "64M"});
  const Service service(daemon.socket());
  Client client = daemon.connect(0);
  const pid_t victim = daemon.pid_of(0);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(client.submit(request_of(passage(std::size_t(i) * 40, 300), 2'000)));
  ASSERT_TRUE(eventually([&] { return daemon.running(0) == 3; }));
  signal_process(victim, SIGSTOP);  // it has them as long as the test looks
  const auto seconds_seen = [&] {
    return service.ask(get("/hive/history.json?after=0")).json()["last"].get<int>();
  };
  ASSERT_TRUE(sees(service, "reading"));
  const int seen = seconds_seen();
  ASSERT_TRUE(eventually([&] { return seconds_seen() > seen; }, kHang)) << "it is seen alive";
  signal_process(victim, SIGKILL);
  Json end;
  EXPECT_TRUE(eventually(
      [&] {
        (void)hive_of(service);
        const Json ends = service.ask(get("/hive/history.json?after=0")).json()["engine_ends"];
        if (!ends.empty()) end = ends[0];
        return !ends.empty() && !end["requests"].is_null() && !end["seconds_until_back"].is_null();
      },
      kHang));
  EXPECT_EQ(end["engine"], 0);
  EXPECT_EQ(end["requests"], 3);
  const Json told = daemon.status()["engines"][0]["last_end"];
  EXPECT_EQ(told["pid"], victim);
  EXPECT_EQ(told["requests"], 3);
  EXPECT_GT(told["back_after_ms"], 0);
}

TEST(HivePage, AStoppedKeeperKeepsNobodyWaiting) {
  const Daemon daemon;
  const Service service(daemon.socket());
  ASSERT_TRUE(sees(service, "reading"));
  const pid_t keeper = daemon.keeper();
  signal_process(keeper, SIGSTOP);
  EXPECT_TRUE(eventually([&] { return hive_of(service)["keeper"] == "silent"; }, kHang));
  EXPECT_EQ(hive_of(service)["sight"], "reading");
  signal_process(keeper, SIGCONT);
  EXPECT_TRUE(eventually([&] { return hive_of(service)["keeper"] == "answering"; }, kHang));
}

TEST(HivePage, WithoutADaemonItSaysSo) {
  Daemon daemon;
  const Service service(daemon.socket());
  ASSERT_TRUE(sees(service, "reading"));
  daemon.kill();
  EXPECT_TRUE(sees(service, "no_daemon"));
  EXPECT_FALSE(hive_of(service)["trouble"].get<std::string>().empty());
  EXPECT_EQ(service.ask(get("/")).status, 200);
}

/// As /metrics: keys guard what is below /v1.
TEST(HivePage, NeedsNoKeyAndSaysThatPromptsDo) {
  const Daemon daemon;
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "secret\n";
  const Service service(daemon.socket(), {"--api-key-file", keys});
  EXPECT_EQ(service.ask(get("/")).status, 200);
  EXPECT_EQ(hive_of(service)["wants_api_key"], true);
}

}  // namespace
}  // namespace kvhive::testing
