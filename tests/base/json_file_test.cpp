#include "base/json_file.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

TEST(JsonFile, OnlyObjectsOfSaneDepthAreParsed) {
  EXPECT_TRUE(parse_json_object(R"({"a": [1, {"b": "]]}}\"[[["}]})"));
  EXPECT_FALSE(parse_json_object("[1]"));
  EXPECT_FALSE(parse_json_object("{} x"));
  EXPECT_FALSE(parse_json_object("{\"a\": \"\xff\"}"));
  EXPECT_EQ(parse_json_object("{\"a\": 1e999}").error().text, "number overflow parsing '1e999'");
  EXPECT_EQ(parse_json_object("{\"a\": ]}").error().text.substr(0, 32),
            "line 1, column 7: syntax error w");
  const auto nested = [](std::size_t depth) {
    return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(parse_json_object(nested(60)));
  EXPECT_FALSE(parse_json_object(nested(100)));
  EXPECT_FALSE(parse_json_object(nested(1000000)));
}

TEST(JsonFields, NullIsAbsentAndWrongTypesAreNamed) {
  const auto object =
      nlohmann::json::parse(R"({"n": null, "i": 3, "f": 1.5, "s": "x", "b": true})");
  const JsonFields fields(object, "file.json");
  EXPECT_FALSE(fields.has("n"));
  EXPECT_EQ(fields.integer_or("n", 7, 0, 9), 7);
  EXPECT_EQ(fields.integer("i", 0, 3), 3);
  EXPECT_EQ(fields.number("i", 0, 3), 3.0);
  EXPECT_EQ(fields.boolean_or("b", false), true);
  EXPECT_EQ(fields.integer("i", 4, 9).error().text,
            "file.json: i = 3, expected a whole number in 4..9");
  EXPECT_EQ(fields.integer("q", 4, 9).error().text,
            "file.json: q is missing, expected a whole number in 4..9");
  EXPECT_EQ(fields.text("f").error().text, "file.json: f = 1.5, expected a string");
  EXPECT_EQ(fields.boolean_or("s", true).error().text,
            "file.json: s = \"x\", expected true or false");
  EXPECT_EQ(fields.wrong("q", "at most 4").value().text,
            "file.json: q is missing, and its default does not fit, expected at most 4");
  EXPECT_FALSE(fields.object("s"));
  EXPECT_FALSE(fields.array("s"));
}

TEST(JsonFile, ShownValuesAreShortAndPrintable) {
  EXPECT_EQ(shown("a\xff\n"), "\"a\\ufffd\\n\"");
  EXPECT_LT(shown(std::string(1000, 'x')).size(), 100u);
}

}  // namespace
}  // namespace kvhive
