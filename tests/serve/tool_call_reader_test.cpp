#include "tools/serve/chat/tool_call_reader.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

struct Calls {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Calls&) const = default;
};

void add(Calls& calls, const ToolCallReader::Found& found) {
  calls.text += found.text;
  for (const ToolCall& call : found.calls) calls.calls.emplace_back(call.name, call.arguments);
}

Calls calls_in(ToolFormat format, const std::string& text, std::size_t piece) {
  ToolCallReader reader(format);
  Calls calls;
  for (std::size_t at = 0; at < text.size(); at += piece)
    add(calls, reader.push(std::string_view(text).substr(at, piece)));
  add(calls, reader.finish());
  return calls;
}

/// However the text is cut into pieces.
void expect(ToolFormat format, const std::string& text, const Calls& expected) {
  for (std::size_t piece = 1; piece <= text.size() + 1; ++piece) {
    const Calls calls = calls_in(format, text, piece);
    EXPECT_EQ(calls.text, expected.text) << text << " in pieces of " << piece;
    EXPECT_EQ(calls.calls, expected.calls) << text << " in pieces of " << piece;
  }
}

TEST(ToolCallReader, ReadsWhatHermesAndQwenWrite) {
  expect(ToolFormat::hermes,
         "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.0, \"a\": "
         "\"é\"}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
         {"I look.\n", {{"f", "{\"b\":1.0,\"a\":\"é\"}"}, {"g", "{}"}}});
}

TEST(ToolCallReader, ReadsAHermesCallThatWasNotClosed) {
  expect(ToolFormat::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
         {"", {{"f", "{}"}}});
}

TEST(ToolCallReader, WhatIsNoCallStaysText) {
  expect(ToolFormat::hermes, "a <tool_cal b <tool_call> {\"name\" </tool_call> c",
         {"a <tool_cal b <tool_call> {\"name\" </tool_call> c", {}});
  expect(ToolFormat::hermes, "1 < 2 <too", {"1 < 2 <too", {}});
  expect(ToolFormat::llama3_json, "{\"city\": 5} is no call", {"{\"city\": 5} is no call", {}});
  expect(ToolFormat::llama3_json, "{\"name\": \"f\"", {"{\"name\": \"f\"", {}});
  expect(ToolFormat::mistral, "[TOOL_CALLS] nothing", {"[TOOL_CALLS] nothing", {}});
  expect(ToolFormat::none, "<tool_call>{\"name\": \"f\"}</tool_call>",
         {"<tool_call>{\"name\": \"f\"}</tool_call>", {}});
}

TEST(ToolCallReader, ReadsWhatLlama3Writes) {
  expect(ToolFormat::llama3_json, " {\"name\": \"f\", \"parameters\": {\"a\": \"}\\\"\"}}",
         {"", {{"f", "{\"a\":\"}\\\"\"}"}}});
  expect(ToolFormat::llama3_json, "<|python_tag|>{\"name\": \"f\"}; {\"name\": \"g\"}",
         {"", {{"f", "{}"}, {"g", "{}"}}});
  expect(ToolFormat::llama3_json, "Hello {\"name\": \"f\"}", {"Hello {\"name\": \"f\"}", {}});
}

TEST(ToolCallReader, ReadsWhatMistralWrites) {
  expect(ToolFormat::mistral,
         "Yes.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\"}]",
         {"Yes.", {{"f", "{\"a\":[1]}"}, {"g", "{}"}}});
  expect(ToolFormat::mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
         {"", {{"f", "{\"a\":1}"}, {"g", "{}"}}});
}

/// Nested, unbalanced, quoted, empty: it ends, and loses nothing that it does not call.
TEST(ToolCallReader, SurvivesAnyPieces) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "[TOOL_CALLS]",
                                           "{",
                                           "}",
                                           "\"name\": \"f\"",
                                           "]",
                                           "[",
                                           "\\",
                                           "\"",
                                           ";",
                                           "<|python_tag|>",
                                           " "};
  std::uint64_t random = 1;
  for (const ToolFormat format :
       {ToolFormat::none, ToolFormat::hermes, ToolFormat::llama3_json, ToolFormat::mistral})
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (int i = 0; i < 8; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        text += pieces[(random >> 33) % pieces.size()];
      }
      const Calls calls = calls_in(format, text, 1 + round % 5);
      if (calls.calls.empty()) {
        EXPECT_EQ(calls.text, text);
      }
    }
}

}  // namespace
}  // namespace kvhive
