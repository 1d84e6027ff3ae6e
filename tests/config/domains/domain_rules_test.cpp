#include "config/domains/domain_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/option_table.hpp"
#include "tests/config/options_file.hpp"

namespace kvhive {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DomainRules, NameDomainsAndTheirMembers) {
  const auto rules = parse_domains("research=alice,1001, @staff ; batch = bob;").value();
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].name, "research");
  EXPECT_THAT(rules[0].members, ElementsAre("alice", "1001", "@staff"));
  EXPECT_EQ(rules[1].name, "batch");
  EXPECT_THAT(rules[1].members, ElementsAre("bob"));
  EXPECT_THAT(parse_domains("").value(), IsEmpty());
  EXPECT_THAT(parse_domains(" ; ").value(), IsEmpty());
}

struct BadRules {
  const char *text, *value, *remedy;
};

class DomainRulesError : public ::testing::TestWithParam<BadRules> {};

TEST_P(DomainRulesError, NamesFieldValueAndRemedy) {
  const auto& [text, value, remedy] = GetParam();
  Options options;
  const auto refused = set_option(options, **find_option("domains"), text);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("domains: '" + std::string(value) + "'"));
  EXPECT_THAT(refused.error().text, HasSubstr(remedy));
  EXPECT_EQ(refused.error().text.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, DomainRulesError,
    ::testing::Values(BadRules{"research", "research", "write NAME=USER"},
                      BadRules{"=alice", "", "1 to 32 letters"},
                      BadRules{"a b=alice", "a b", "1 to 32 letters"},
                      BadRules{"abcdefghijklmnopqrstuvwxyzabcdefg=x",
                               "abcdefghijklmnopqrstuvwxyzabcdefg", "1 to 32 letters"},
                      BadRules{"all=alice", "all", "choose another"},
                      BadRules{"uid-7=alice", "uid-7", "choose another"},
                      BadRules{"research=", "research", "has no members"},
                      BadRules{"research=alice,", "", "separate members by commas"},
                      BadRules{"research=@", "@", "separate members by commas"},
                      BadRules{"research=alice bob", "alice bob", "separate members by commas"},
                      BadRules{"a=alice;b=bob;a=carol", "a", "in one place"},
                      BadRules{"a=alice;b=bob,alice", "alice",
                               "is in 'a' and again in 'b'; keep it in one"},
                      BadRules{"a=alice,alice", "alice", "keep it in one"}));

// -- domains in the options file

class DomainsInAFile : public OptionsFile {};

TEST_F(DomainsInAFile, AreATableOfLists) {
  ASSERT_TRUE(load("sharing = \"listed\"\n"
                   "[domains]\nresearch = [\"alice\", 1001, \"@staff\"]\nbatch = \"bob\"\n")
                  .has_value());
  EXPECT_EQ(options.sharing, Sharing::listed);
  EXPECT_EQ(to_string(options.domains), "batch=bob;research=alice,1001,@staff");
}

TEST_F(DomainsInAFile, AreTheTextOfTheFlag) {
  ASSERT_TRUE(load("domains = \"research=alice;batch=bob\"\n").has_value());
  EXPECT_EQ(to_string(options.domains), "research=alice;batch=bob");
}

TEST_F(DomainsInAFile, AWrongItemIsNamedWithItsPlace) {
  const std::pair<const char*, const char*> bad[] = {
      {"[domains]\nresearch = [\"alice,bob\"]\n", "domains.research: 'alice,bob'"},
      {"[domains]\nresearch = [[\"alice\"]]\n", "domains.research must be a string"},
      {"[domains]\nresearch = [{users = \"alice\"}]\n", "domains.research must be a string"},
      {"[domains]\nresearch = {users = \"alice\"}\n", "'users:alice' in 'research' is neither"},
      {"[domains]\nresearch = []\n", "has no members"}};
  for (const auto& [toml, text] : bad) {
    const auto loaded = load(toml);
    ASSERT_FALSE(loaded.has_value()) << toml;
    EXPECT_THAT(loaded.error().text, HasSubstr(text));
  }
}

}  // namespace
}  // namespace kvhive
