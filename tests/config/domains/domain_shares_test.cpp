#include "config/domains/domain_shares.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/option_table.hpp"
#include "tests/config/options_file.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DomainShares, NameWeightsAndLimits) {
  const auto rules =
      parse_shares("research = weight:2.5, max-num-seqs:64 ; *=max-queued-tokens:20000;").value();
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].domain, "research");
  EXPECT_EQ(rules[0].share, (DomainShare{.weight = 2.5f, .max_num_seqs = 64}));
  EXPECT_EQ(rules[1].share, (DomainShare{.max_queued_tokens = 20'000}));
  EXPECT_THAT(parse_shares("").value(), IsEmpty());
  EXPECT_EQ(parse_shares(to_string(rules)).value(), rules);
}

TEST(DomainShares, NameBlocksAsNumbersOrPercentages) {
  const auto rules = parse_shares("a=min-blocks:12.5%,max-blocks:4096;b=weight:2").value();
  EXPECT_EQ(rules[0].blocks, (BlockShare{.min = {.percent = 12.5f}, .max = {.blocks = 4096}}));
  EXPECT_EQ(rules[0].blocks.min.of(1000), 125u);
  EXPECT_EQ(rules[0].blocks.min.of(15), 1u) << "rounded down";
  EXPECT_EQ(rules[0].blocks.min.of(2), 1u) << "but not to none";
  EXPECT_EQ(rules[0].blocks.max.of(1000), 4096u);
  EXPECT_FALSE(rules[1].blocks.is_given());
  EXPECT_EQ(parse_shares(to_string(rules)).value(), rules);
  EXPECT_TRUE(parse_shares("a=min-blocks:60%;b=min-blocks:40%").has_value());
}

TEST(DomainShares, ADomainsRuleWinsOverTheOneForTheOthers) {
  const auto rules = parse_shares("*=weight:0.5;uid-7=weight:3").value();
  EXPECT_EQ(share_of("uid-7", rules).weight, 3);
  EXPECT_EQ(share_of("uid-8", rules).weight, 0.5f);
  EXPECT_EQ(share_of("uid-8", {}), DomainShare{});
}

struct BadShares {
  const char *text, *value, *remedy;
};

class DomainSharesError : public ::testing::TestWithParam<BadShares> {};

TEST_P(DomainSharesError, NamesFieldValueAndRemedy) {
  const auto& [text, value, remedy] = GetParam();
  Options options;
  const auto refused = set_option(options, **find_option("shares"), text);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("shares: '" + std::string(value) + "'"));
  EXPECT_THAT(refused.error().text, HasSubstr(remedy));
}

INSTANTIATE_TEST_SUITE_P(
    All, DomainSharesError,
    ::testing::Values(BadShares{"research", "research", "write DOMAIN=weight:3"},
                      BadShares{"=weight:3", "=weight:3", "write DOMAIN=weight:3"},
                      BadShares{"a=3", "3", "write weight:NUMBER"},
                      BadShares{"a=blocks:3", "blocks", "use weight, max-num-seqs, max"},
                      BadShares{"a=weight:0", "weight:0", "in [0.001, 1000]"},
                      BadShares{"a=weight:nan", "weight:nan", "in [0.001, 1000]"},
                      BadShares{"a=weight:1e9", "weight:1e9", "in [0.001, 1000]"},
                      BadShares{"a=max-num-seqs:0", "max-num-seqs:0", "a whole number >= 1"},
                      BadShares{"a=max-queued-tokens:-1", "max-queued-tokens:-1", ">= 1"},
                      BadShares{"a=min-blocks:0", "min-blocks:0", "a percentage of the device"},
                      BadShares{"a=max-blocks:101%", "max-blocks:101%", "a percentage"},
                      BadShares{"a=min-blocks:%", "min-blocks:%", "a percentage"},
                      BadShares{"*=max-blocks:5%", "*=max-blocks:5%", "for named domains"},
                      BadShares{"a=min-blocks:60%;b=min-blocks:41%", "min-blocks:41%",
                                "of 'b' makes more than 100%"},
                      BadShares{"a=weight:1;a=weight:2", "a", "in one place"}));

TEST(DomainShares, ThatAreOfNoDomainAreRefused) {
  Options options;
  options.model = "m";
  options.domains = parse_domains("research=7").value();
  for (const char* fine : {"research=weight:2", "all=weight:2", "uid-7=weight:2", "*=weight:2"}) {
    options.shares = parse_shares(fine).value();
    EXPECT_TRUE(check_options(options).has_value()) << fine;
  }
  options.shares = parse_shares("reserch=weight:2").value();
  const auto refused = check_options(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("shares: 'reserch' is no domain; name one of"));
  EXPECT_THAT(refused.error().text, HasSubstr("'research'"));
}

class SharesInAFile : public OptionsFile {};

TEST_F(SharesInAFile, AreATableOfTables) {
  ASSERT_TRUE(load("[shares]\n"
                   "uid-7 = {weight = 3, max-num-seqs = 64}\n"
                   "\"*\" = {max-queued-tokens = 20000}\n")
                  .has_value());
  EXPECT_EQ(share_of("uid-7", options.shares), (DomainShare{.weight = 3, .max_num_seqs = 64}));
  EXPECT_EQ(share_of("x", options.shares).max_queued_tokens, 20'000u);
  ASSERT_TRUE(load("[shares]\nuid-7 = {min-blocks = \"25%\", max-blocks = 500}\n").has_value());
  EXPECT_EQ(options.shares.at(0).blocks,
            (BlockShare{.min = {.percent = 25}, .max = {.blocks = 500}}));
  ASSERT_TRUE(load("[shares.uid-7]\nweight = 2\n").has_value());
  EXPECT_EQ(share_of("uid-7", options.shares).weight, 2);
}

TEST_F(SharesInAFile, AWrongPartIsNamed) {
  const auto loaded = load("[shares]\nuid-7 = {weight = \"3;*=weight:9\"}\n");
  ASSERT_FALSE(loaded.has_value());
  EXPECT_THAT(loaded.error().text, HasSubstr("shares.uid-7: '3;*=weight:9'"));
}

}  // namespace
}  // namespace kvhive
