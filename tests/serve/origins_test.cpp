#include "tools/serve/access/origins.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/serve/served.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Origins, WhatIsNoOriginIsRefusedByItsValue) {
  for (const char* wrong : {"", "chat.example", "https://", "://a", "https://a/", "https://a/b",
                            "https://a b", "null", "https://a,https://b", "*.example"}) {
    const auto refused = Origins::parse({"https://fine.example", wrong});
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_THAT(refused.error().text,
                HasSubstr("--allowed-origins '" + std::string(wrong) + "' is no origin"));
  }
}

TEST(Origins, AreComparedAsBrowsersWriteThem) {
  const auto origins =
      Origins::parse({"https://Chat.Example:443", "http://127.0.0.1:3000"}).value();
  const auto is_allowed = [&](const char* origin) {
    HttpRequest request;
    request.headers.emplace_back("origin", origin);
    for (const auto& [name, value] : origins.headers_for(request))
      if (name == "Access-Control-Allow-Origin") return value == origin;
    return false;
  };
  EXPECT_TRUE(is_allowed("https://chat.example"));
  EXPECT_TRUE(is_allowed("http://127.0.0.1:3000"));
  for (const char* other :
       {"http://chat.example", "https://chat.example:8443", "https://chat.example.evil",
        "https://evil.chat.example", "http://127.0.0.1", "http://127.0.0.1:30000", "null", ""})
    EXPECT_FALSE(is_allowed(other)) << other;
}

std::string question(const std::string& origin, const std::string& wanted = "content-type") {
  return "OPTIONS " + std::string(kCompletions) +
         " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
         "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " + wanted +
         "\r\n\r\n";
}
std::string ask_from(const std::string& origin, bool is_streamed = false) {
  const Json request = {{"prompt", "a"}, {"max_tokens", 2}, {"stream", is_streamed}};
  return post(kCompletions, request.dump(), "Origin: " + origin + "\r\n");
}
constexpr const char* kAllows = "Access-Control-Allow-Origin";

/// Nothing is told to pages of others, and their questions are not answered.
TEST(ServedOrigins, NoneIsAllowedByDefault) {
  const Daemon daemon;
  const Service service(daemon.socket());
  const HttpReply asked = service.ask(question("https://chat.example"));
  EXPECT_EQ(asked.status, 405);
  const HttpReply answered = service.ask(ask_from("https://chat.example"));
  EXPECT_EQ(answered.status, 200);
  for (const HttpReply& reply : {asked, answered}) {
    EXPECT_THAT(reply.head, Not(HasSubstr("Access-Control")));
    EXPECT_THAT(reply.head, Not(HasSubstr("Vary")));
  }
}

TEST(ServedOrigins, ThoseThatAreAllowedMayAskAndRead) {
  const Daemon daemon;
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "secret\n";
  const Service service(daemon.socket(), {"--allowed-origins", "https://chat.example",
                                          "http://127.0.0.1:3000", "--api-key-file", keys});
  const std::string allows = std::string(kAllows) + ": https://chat.example\r\n";
  // A browser asks without the page's key.
  const HttpReply asked =
      service.ask(question("https://chat.example", "authorization,content-type,x-stainless-os"));
  EXPECT_EQ(asked.status, 200);
  EXPECT_THAT(asked.head, HasSubstr(allows));
  EXPECT_THAT(asked.head, HasSubstr("Access-Control-Allow-Methods: GET, POST\r\n"));
  EXPECT_THAT(asked.head, HasSubstr("Access-Control-Allow-Headers: "
                                    "authorization,content-type,x-stainless-os\r\n"));
  EXPECT_THAT(asked.head, Not(HasSubstr("Allow-Credentials")));
  const HttpReply without_key = service.ask(ask_from("https://chat.example"));
  EXPECT_EQ(without_key.status, 401);
  EXPECT_THAT(without_key.head, HasSubstr(allows)) << "a page is to see its error";
  for (const bool is_streamed : {false, true}) {
    const Json request = {{"prompt", "a"}, {"max_tokens", 2}, {"stream", is_streamed}};
    const HttpReply answered =
        service.ask(post(kCompletions, request.dump(),
                         "Origin: https://chat.example\r\nAuthorization: Bearer secret\r\n"));
    EXPECT_EQ(answered.status, 200);
    EXPECT_THAT(answered.head, HasSubstr(allows));
    EXPECT_THAT(answered.head, HasSubstr("Vary: Origin\r\n"));
  }
  const HttpReply refused = service.ask(question("https://other.example"));
  EXPECT_EQ(refused.status, 403);
  EXPECT_THAT(refused.head, Not(HasSubstr(kAllows)));
  EXPECT_THAT(refused.body, HasSubstr("--allowed-origins"));
  EXPECT_THAT(service.ask(get("/health")).head, Not(HasSubstr(kAllows)));
}

/// The next request over the same connection comes from nobody's page, or another's.
TEST(ServedOrigins, EachAnswerIsForItsOwnRequestsOrigin) {
  const Daemon daemon;
  const Service service(daemon.socket(),
                        {"--allowed-origins", "https://a.example", "https://b.example"});
  HttpClient client = service.connect();
  for (const std::string origin : {"https://a.example", "https://c.example", "https://b.example"}) {
    client.send(ask_from(origin, origin == "https://b.example"));
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    const std::string allows = std::string(kAllows) + ": " + origin;
    if (origin == "https://c.example")
      EXPECT_THAT(reply->head, Not(HasSubstr(kAllows)));
    else
      EXPECT_THAT(reply->head, HasSubstr(allows));
  }
}

TEST(ServedOrigins, AllMayBeAllowedAndNobodyPutsLinesIntoTheAnswer) {
  const Daemon daemon;
  const Service service(daemon.socket(), {"--allowed-origins", "*"});
  const HttpReply asked = service.ask(question("null", "a\tb: c"));
  EXPECT_EQ(asked.status, 200);
  EXPECT_THAT(asked.head, HasSubstr(std::string(kAllows) + ": *\r\n"));
  EXPECT_THAT(asked.head, Not(HasSubstr("Allow-Headers")))
      << "what is no list of names is left out";
  EXPECT_THAT(service.ask(ask_from("https://chat.example")).head,
              HasSubstr(std::string(kAllows) + ": *\r\n"));
  const CommandResult refused =
      daemon.cli({"serve", "--port", "0", "--allowed-origins", "https://a/"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("'https://a/' is no origin"));
}

}  // namespace
}  // namespace kvhive::testing
