#include "models/text/normalizer.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

std::string apply(const char* json, const std::string& text) {
  return Normalizer::parse(nlohmann::json::parse(json), "n").value().apply(text);
}

TEST(Normalizer, NullChangesNothing) { EXPECT_EQ(apply("null", "e\u0301 x"), "e\u0301 x"); }

TEST(Normalizer, NfcComposes) {
  EXPECT_EQ(apply(R"({"type": "NFC"})", "e\u0301"), "\u00e9");
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\u212b"), "\u00c5");              // singleton
  EXPECT_EQ(apply(R"({"type": "NFC"})", "\ufb01 a\u00ad\n"), "\ufb01 a\u00ad\n");
  EXPECT_EQ(apply(R"({"type": "NFKC"})", "\ufb01"), "fi");
  EXPECT_EQ(apply(R"({"type": "NFD"})", "\u00e9"), "e\u0301");
}

TEST(Normalizer, KeepsNulBytes) {
  const std::string text("a\0\u00e9", 4);
  EXPECT_EQ(apply(R"({"type": "NFC"})", text), text);
}

TEST(Normalizer, SentencePieceStepsRunInOrder) {
  const char* json = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  EXPECT_EQ(apply(json, "a  b"), "▁a▁▁b");
  EXPECT_EQ(apply(json, ""), "");
}

TEST(Normalizer, UnknownKindsAreRefusedByName) {
  for (const char* json :
       {R"({"type": "Lowercase"})",
        R"({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""})",
        R"({"type": "Replace", "pattern": {"String": ""}, "content": ""})", R"({})", R"([1])",
        R"({"type": "Sequence", "normalizers": [{"type": "Strip"}]})"}) {
    const auto parsed = Normalizer::parse(nlohmann::json::parse(json), "file: normalizer");
    ASSERT_FALSE(parsed) << json;
    EXPECT_NE(parsed.error().text.find("file: normalizer"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvhive
