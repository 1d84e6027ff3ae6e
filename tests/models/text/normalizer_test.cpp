#include "models/text/normalizer.hpp"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

Normalizer parse(const char* form) {
  return Normalizer::parse(nlohmann::json::parse(form), "n").value();
}

std::string apply(const char* form, const std::string& text) { return parse(form).apply(text); }

TEST(Normalizer, NullChangesNothing) { EXPECT_EQ(apply("null", "e\u0301 x"), "e\u0301 x"); }

TEST(Normalizer, NfcComposes) {
  EXPECT_EQ(apply(R"({"type": "NFC"})", "e\u0301"), "\u00e9");
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\u212b"), "\u00c5");              // singleton
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\ufb01 a\u00ad\n"), "\ufb01 a\u00ad\n");
  EXPECT_EQ(apply(R"({"type": "NFKC"})", "\ufb01"), "fi");
  EXPECT_EQ(apply(R"({"type": "NFD"})", "\u00e9"), "e\u0301");
}

constexpr std::pair<const char*, int> kForms[] = {
    {R"({"type": "NFC"})", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {R"({"type": "NFD"})", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {R"({"type": "NFKC"})", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {R"({"type": "NFKD"})", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

/// The whole of it by utf8proc, which takes quadratic time.
std::string by_utf8proc(const std::string& text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                  static_cast<utf8proc_option_t>(options));
  KV_CHECK(bytes >= 0);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, std::free);
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(bytes)};
}

/// All code points but surrogates.
std::vector<char32_t> all_code_points() {
  std::vector<char32_t> all;
  for (char32_t c = 0; c < 0x110000; ++c)
    if (c < 0xD800 || c > 0xDFFF) all.push_back(c);
  return all;
}

TEST(Normalizer, NormalizesEveryCodePointAsUtf8procDoes) {
  for (const auto& [form, options] : kForms) {
    const auto normalizer = parse(form);
    for (const char32_t c : all_code_points()) {
      const std::string text = utf8_of(c);
      ASSERT_EQ(normalizer.apply(text), by_utf8proc(text, options))
          << form << " U+" << std::hex << std::uint32_t(c);
    }
  }
}

TEST(Normalizer, NormalizesRandomTextsAsUtf8procDoes) {
  std::mt19937 random(1);
  std::vector<char32_t> marks, changing;
  for (const char32_t c : all_code_points()) {
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) marks.push_back(c);
    const std::string text = utf8_of(c);
    if (by_utf8proc(text, kForms[3].second) != text) changing.push_back(c);
  }
  const std::vector<char32_t> letters = {U'a', U'e', U'\u0915', U'\u05d0', U'\u00e9', U'\u1e69'};
  const auto one_of = [&](const auto& from) { return from[random() % from.size()]; };
  const auto next = [&]() -> char32_t {
    switch (random() % 8) {
      case 0: return one_of(letters);
      case 1: return U'\u1100' + random() % 0x100;  // Hangul jamo
      case 2: return U'\uac00' + random() % 11172;  // Hangul syllables
      case 3: return one_of(changing);
      default: return one_of(marks);
    }
  };
  for (const auto& [form, options] : kForms) {
    const auto normalizer = parse(form);
    for (int round = 0; round < 20'000; ++round) {
      std::string text;
      for (std::size_t left = random() % 24; left > 0; --left) text += utf8_of(next());
      ASSERT_EQ(normalizer.apply(text), by_utf8proc(text, options)) << form << ' ' << text;
    }
  }
}

TEST(Normalizer, AMegabyteOfMarksOutOfOrderTakesNoQuadraticTime) {
  std::string text;
  while (text.size() < 1 << 20) text += "\u0301\u0323";  // classes 230 and 220
  for (const auto& [form, options] : kForms) {
    const std::string normal = parse(form).apply(text);  // a quadratic algorithm would time out
    EXPECT_EQ(normal.size(), text.size());
    EXPECT_EQ(normal.substr(0, 4), "\u0323\u0323");
  }
}

TEST(Normalizer, KeepsNulBytes) {
  const std::string text("a\0\u00e9", 4);
  EXPECT_EQ(apply(R"({"type": "NFC"})", text), text);
}

TEST(Normalizer, SentencePieceStepsRunInOrder) {
  const char* form = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  EXPECT_EQ(apply(form, "a  b"), "▁a▁▁b");
  EXPECT_EQ(apply(form, ""), "");
}

TEST(Normalizer, UnknownKindsAreRefusedByName) {
  for (const char* form :
       {R"({"type": "Lowercase"})",
        R"({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""})",
        R"({"type": "Replace", "pattern": {"String": ""}, "content": ""})", R"({})", R"([1])",
        R"({"type": "Sequence", "normalizers": [{"type": "Strip"}]})"}) {
    const auto parsed = Normalizer::parse(nlohmann::json::parse(form), "file: normalizer");
    ASSERT_FALSE(parsed) << form;
    EXPECT_NE(parsed.error().text.find("file: normalizer"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvhive
