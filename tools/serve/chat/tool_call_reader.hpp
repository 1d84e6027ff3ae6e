#pragma once
// Finds the calls of tools in what a model writes. Text that turns out to be no call is given as
// text; nothing is lost.

#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/chat/chat_template.hpp"

namespace kvhive {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON, as text
};

class ToolCallReader {
 public:
  explicit ToolCallReader(ToolFormat format) : format_(format) {}

  struct Found {
    std::string text;  ///< not part of any call
    std::vector<ToolCall> calls;
  };
  /// What is certain after some more text. With mistral and llama3_json, special tokens are part
  /// of the text.
  Found push(std::string_view text);
  /// The rest, at the answer's end.
  Found finish();

 private:
  Found read_hermes(bool is_end);
  Found read_rest();

  const ToolFormat format_;
  std::string held_;
  bool has_calls_ = false;
  bool is_plain_ = false;  ///< llama3_json: it did not begin as a call
};

/// The special token that begins a call; empty = a format without one.
std::string_view marker_of(ToolFormat format);

}  // namespace kvhive
