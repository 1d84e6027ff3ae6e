#include "tools/serve/openai/unknown_fields.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/serve/metrics/exposition_parser.hpp"
#include "tests/serve/served.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(UnknownFields, AreShownWithoutWhatATerminalWouldObey) {
  EXPECT_EQ(UnknownFields::shown("max_token"), "max_token");
  EXPECT_EQ(UnknownFields::shown("a\x1b[2J\n\xc3\xa9"), "a?[2J???");
  EXPECT_EQ(UnknownFields::shown(std::string(65, 'a')), std::string(64, 'a') + "...");
}

TEST(UnknownFields, AllAreCountedHoweverMany) {
  UnknownFields fields;
  for (int i = 0; i < 1000; ++i) fields.add({2, {std::to_string(i), "max_token"}});
  EXPECT_EQ(fields.count(), 2000u);
}

class ServedUnknownFields : public ::testing::Test {
 protected:
  void ask(const Json& request, const char* path = "/v1/completions") const {
    EXPECT_EQ(service_.ask(post(path, request.dump())).status, 200) << request;
  }
  double counted() const {
    const MetricsText text(service_.ask(get("/metrics?view=service")).body);
    return text.sum("kvhive_serve_unknown_fields_total");
  }
  std::string logged() {
    service_.stop();  // which writes all lines
    std::ostringstream text;
    text << std::ifstream(daemon_.directory() + "/log").rdbuf();
    return text.str();
  }

  const Daemon daemon_;
  const UniqueFd log_{open((daemon_.directory() + "/log").c_str(),
                           O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)};
  Service service_{daemon_.socket(), {}, 0, log_.get()};
};

/// What is known is not counted, also if it is not done yet.
TEST_F(ServedUnknownFields, AreCountedAndEachNameIsLoggedOnce) {
  ask({{"prompt", "a"},
       {"max_tokens", 1},
       {"user", "somebody"},
       {"seed", nullptr},
       {"echo", true},
       {"frequency_penalty", 0},
       {"suffix", ""}});
  EXPECT_EQ(counted(), 0);
  for (int i = 0; i < 3; ++i) ask({{"prompt", "a"}, {"max_token", 1}, {"temprature", nullptr}});
  EXPECT_EQ(counted(), 6);
  const std::string log = logged();
  const std::regex name("the field 'max_token'");
  EXPECT_EQ(std::distance(std::sregex_iterator(log.begin(), log.end(), name), {}), 1) << log;
  EXPECT_THAT(log, HasSubstr("'temprature'"));
}

/// The log and the service's memory do not grow with what clients invent.
TEST_F(ServedUnknownFields, NamesWithoutEndAreNotLogged) {
  for (int i = 0; i < 3; ++i) {
    Json request = {{"prompt", "a"}, {"max_tokens", 1}};
    for (int name = 0; name < 1000; ++name) request[std::to_string(i * 1000 + name)] = 1;
    ask(request);
  }
  EXPECT_EQ(counted(), 3000);
  const std::string log = logged();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), UnknownFields::kMostNames) << log;
  EXPECT_THAT(log, HasSubstr("(further names are not logged)"));
}

}  // namespace
}  // namespace kvhive::testing
