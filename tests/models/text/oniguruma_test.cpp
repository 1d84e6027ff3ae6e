#include "models/text/oniguruma.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/text/regex.hpp"

namespace kvhive {
namespace {

using testing::HasSubstr;

struct Refused {
  const char* pattern;
  const char* construct;
  int offset;
};

class RefusedPattern : public testing::TestWithParam<Refused> {};

TEST_P(RefusedPattern, NamesPatternPlaceAndReason) {
  const auto& [pattern, construct, offset] = GetParam();
  const auto translated = oniguruma_to_pcre2(pattern);
  ASSERT_FALSE(translated) << *translated;
  EXPECT_EQ(translated.error().code, Errc::unsupported);
  EXPECT_THAT(translated.error().text, HasSubstr("regular expression " + std::string(pattern)));
  EXPECT_THAT(translated.error().text,
              HasSubstr(std::string(construct) + " at offset " + std::to_string(offset)));
}

INSTANTIATE_TEST_SUITE_P(
    Oniguruma, RefusedPattern,
    testing::Values(
        Refused{R"((a)\1)", R"(\1)", 3}, Refused{R"((?<n>a)\k<n>)", R"(\k)", 7},
        Refused{R"(a\g<0>)", R"(\g)", 1}, Refused{R"(ab\Kc)", R"(\K)", 2},
        Refused{R"(a\X)", R"(\X)", 1}, Refused{R"(\y)", R"(\y)", 0},
        Refused{R"(\Qa\E)", R"(\Q)", 0}, Refused{R"(\pL)", R"(\p)", 0},
        Refused{R"(\012)", R"(\0)", 0}, Refused{R"(\o{12})", R"(\o)", 0},
        Refused{R"(\cA)", R"(\c)", 0}, Refused{R"(\xe9)", R"(\xe9)", 0},
        Refused{R"(\x{110000})", R"(\x{110000})", 0}, Refused{R"(\u12)", R"(\u12)", 0},
        Refused{"(?x) a", "(?x", 0}, Refused{"(?s).", "(?s", 0}, Refused{"a(?~b)", "(?~", 1},
        Refused{"(?(1)a|b)", "(?(", 0}, Refused{"(?|a|b)", "(?|", 0}, Refused{"(?P<n>a)", "(?P", 0},
        Refused{"(*FAIL)", "(", 0}, Refused{"(?#c)a", "(?#", 0}, Refused{"*a", "*", 0},
        Refused{"(+)", "+", 1}, Refused{"a|{2}", "{2}", 2}, Refused{"^*", "^*", 0},
        Refused{R"(\b+)", R"(\b+)", 0}, Refused{"(?=a)+", "(?=a)+", 0}, Refused{"a++*", "a++*", 0},
        Refused{"(?:a*?)+", "(?:a*?)+", 0}, Refused{"a{3,1}", "{3,1}", 1},
        Refused{"a{70000}", "{70000}", 1}, Refused{"(a", "(a", 0}, Refused{"a)b", ")", 1},
        Refused{"a\\", "", 2}, Refused{"[a", "[a", 0}, Refused{"x[]", "[]", 1},
        Refused{"[a&&]", "[a&&]", 0}, Refused{R"([\w-x])", "", 3}, Refused{"[a-c-e]", "a-c", 1},
        Refused{"[a-[b]]", "a-", 1}, Refused{"[z-a]", "z-a", 1}, Refused{R"([\R])", R"(\R)", 1},
        Refused{"[[:what:]]", "[:what:]", 1}, Refused{R"([\1])", R"(\1)", 1},
        Refused{"(?i:ss)", "ss", 4}, Refused{"(?i:x(?:as)t)", ")t", 10},
        Refused{"(?i:\u00df)", "\u00df", 4}, Refused{R"((?i:[\p{Lu}]))", R"(\p{Lu})", 5},
        Refused{"(?i)[\u00e0-\u00ff]", "\u00e0-\u00ff", 5}));

TEST(Oniguruma, PcreRefusesUnknownProperties) {
  const auto regex = Regex::compile(R"(a\p{Klingon})");
  ASSERT_FALSE(regex);
  EXPECT_THAT(regex.error().text, HasSubstr(R"(regular expression a\p{Klingon})"));
}

TEST(Oniguruma, EverySmallPatternIsTranslatedOrRefused) {
  const std::string_view signs = "a\\[]()^&{}?*+-|:1,i=";
  std::string pattern(5, ' ');
  for (std::size_t i = 0; i < signs.size() * signs.size() * signs.size(); ++i) {
    for (std::size_t digit = 0, rest = i; digit < 3; ++digit, rest /= signs.size()) {
      pattern[digit] = signs[rest % signs.size()];
      pattern[4 - digit] = signs[(rest + digit) % signs.size()];
    }
    if (!oniguruma_to_pcre2(pattern)) continue;
    EXPECT_TRUE(Regex::compile(pattern)) << pattern;
  }
}

TEST(Oniguruma, DeepNestingIsRefused) {
  EXPECT_FALSE(oniguruma_to_pcre2(std::string(100000, '(')));
  EXPECT_FALSE(oniguruma_to_pcre2(std::string(100000, '[')));
  EXPECT_TRUE(Regex::compile(std::string(90, '(') + "a" + std::string(90, ')')));
}

TEST(Regex, SaysItsUnicodeVersion) {
  EXPECT_THAT(text_unicode_version(),
              testing::MatchesRegex("Unicode [0-9.]+ .PCRE2 [0-9.]+., [0-9.]+ .utf8proc [0-9.]+."));
}

}  // namespace
}  // namespace kvhive
