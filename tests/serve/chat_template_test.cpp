#include "tools/serve/chat/chat_template.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;

TEST(ChatTemplateTest, AModelMayHaveNone) {
  const TempDirectory model;
  EXPECT_EQ(*find_chat_template(model.path(), ""), std::nullopt);
  model.write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  EXPECT_EQ(*find_chat_template(model.path(), ""), std::nullopt);
}

TEST(ChatTemplateTest, IsFoundWhereTransformersLooks) {
  const TempDirectory model;
  model.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
      "model_max_length": 5, "chat_template": "one"})");
  auto chat = **find_chat_template(model.path(), "");
  EXPECT_EQ(chat.by_use.at("default"), "one");
  EXPECT_EQ(chat.special_tokens["bos_token"], "<s>");
  EXPECT_FALSE(chat.special_tokens.contains("model_max_length"));
  model.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "a"},
      {"name": "tool_use", "template": "b"}]})");
  EXPECT_EQ((**find_chat_template(model.path(), "")).by_use.at("tool_use"), "b");
  model.write("chat_template.jinja", "two");
  chat = **find_chat_template(model.path(), "");
  EXPECT_EQ(chat.by_use.at("default"), "two");
  EXPECT_EQ(chat.by_use.size(), 1u);
  model.write("three", "three");
  EXPECT_EQ((**find_chat_template(model.path(), model.path() / "three")).by_use.at("default"),
            "three");
}

TEST(ChatTemplateTest, WhatIsWrongIsNamed) {
  const TempDirectory model;
  EXPECT_THAT(find_chat_template(model.path(), model.path() / "none").error().text,
              HasSubstr("none"));
  model.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(find_chat_template(model.path(), "").error().text, HasSubstr("chat_template"));
  model.write("tokenizer_config.json", R"({"chat_template": [{"name": "a", "template": "b"}]})");
  EXPECT_THAT(find_chat_template(model.path(), "").error().text, HasSubstr("'default'"));
}

TEST(ChatTemplateTest, ShowsHowToolsAreCalled) {
  const auto format = [](const std::string& text) {
    return ChatTemplate{{{"default", text}}, {}}.tool_format();
  };
  EXPECT_EQ(format("...<tool_call>..."), ToolFormat::hermes);
  EXPECT_EQ(format("...[TOOL_CALLS]..."), ToolFormat::mistral);
  EXPECT_EQ(format("...<|python_tag|>..."), ToolFormat::llama3_json);
  EXPECT_EQ(format("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace kvhive
