#include "tools/serve/access/hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "tests/serve/served.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

bool is_allowed(const Hosts& hosts, const std::string& host) {
  HttpRequest request;
  request.headers.emplace_back("host", host);
  return !hosts.refusal_of(request);
}

TEST(Hosts, AddressesAndThisMachinesNamesAreAllowed) {
  std::array<char, 256> own{};
  ASSERT_EQ(gethostname(own.data(), own.size() - 1), 0);
  for (const std::string& host : std::initializer_list<std::string>{
           "127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]", "[::1]:8000", "[fe80::1:2]:1",
           "localhost", "LocalHost:8000", "localhost.", std::string(own.data())})
    EXPECT_TRUE(is_allowed(Hosts(), host)) << host;
  EXPECT_FALSE(Hosts().refusal_of(HttpRequest{})) << "no browser sends none";
}

TEST(Hosts, NamesOfOthersAreRefused) {
  for (const std::string host :
       {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil-localhost", "[::1].evil.example", "127.0.0.1:8000.evil.example", "[evil]", "::1", "",
        ":8000", "evil.example:", "127.1", "localhost:80:80"})
    EXPECT_FALSE(is_allowed(Hosts(), host)) << host;
  HttpRequest two;
  two.headers = {{"Host", "localhost"}, {"host", "evil.example"}};
  EXPECT_TRUE(Hosts().refusal_of(two)) << "whichever of them is meant";
}

TEST(Hosts, TheOperatorAddsNames) {
  const Hosts hosts = Hosts::parse({"KV.example", "*.Team.example"}).value();
  for (const std::string host :
       {"kv.example", "kv.example:443", "a.team.example", "a.b.team.example", "127.0.0.1"})
    EXPECT_TRUE(is_allowed(hosts, host)) << host;
  for (const std::string host :
       {"evil.kv.example", "team.example", "evilteam.example", ".team.example"})
    EXPECT_FALSE(is_allowed(hosts, host)) << host;
  EXPECT_TRUE(is_allowed(Hosts::parse({"*"}).value(), "evil.example"));
  for (const char* wrong :
       {"", "http://a.example", "a.example:80", "a b", "*a.example", "a.*", "*."}) {
    const auto refused = Hosts::parse({wrong});
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_THAT(refused.error().text,
                HasSubstr("--allowed-hosts '" + std::string(wrong) + "' is no host's name"));
  }
}

std::string get_of(const std::string& host, const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
}

/// A page that has its name lead here reads nothing, whatever it asks for.
TEST(ServedHosts, RequestsByNamesOfOthersAreRefused) {
  const Daemon daemon;
  const Service service(daemon.socket(), {"--allowed-origins", "*"});
  for (const char* path : {"/v1/models", "/hive.json", "/", "/metrics", "/health", "/nothing"}) {
    const HttpReply refused = service.ask(get_of("evil.example:8000", path));
    EXPECT_EQ(refused.status, 403) << path;
    EXPECT_EQ(refused.json()["error"]["param"], "Host") << path;
    EXPECT_THAT(refused.json()["error"]["message"].get<std::string>(),
                HasSubstr("Host: 'evil.example:8000' is none of this service's names"));
    EXPECT_THAT(refused.body, HasSubstr("--allowed-hosts"));
    EXPECT_THAT(refused.head, Not(HasSubstr("Access-Control")));
  }
  EXPECT_EQ(service.ask(get_of("localhost:1", "/v1/models")).status, 200);
  const Service other(daemon.socket(), {"--allowed-hosts", "evil.example"});
  EXPECT_EQ(other.ask(get_of("evil.example:8000", "/v1/models")).status, 200);
}

}  // namespace
}  // namespace kvhive::testing
