#pragma once
// A POST /v1/chat/completions under way, from its rendered prompt on.

#include <optional>

#include "tools/serve/chat/chat_request.hpp"
#include "tools/serve/chat/tool_call_reader.hpp"
#include "tools/serve/openai/generation.hpp"

namespace kvhive {

class ChatCompletion : public Generation {
 public:
  /// \param format  how the model writes calls of tools
  ChatCompletion(AnswerContext context, ChatRequest request, ToolFormat format);

 private:
  /// Of each answer.
  struct Turn {
    explicit Turn(ToolFormat format) : reader(format) {}

    ToolCallReader reader;
    std::vector<TokenId> tokens;  ///< so far, while a marker may come
    std::size_t bytes = 0;        ///< of their text
    std::size_t calls = 0;
  };

  std::string_view prompt_field() const override { return "messages"; }
  std::string_view kind() const override {
    return request().stream ? "chat.completion.chunk" : "chat.completion";
  }
  void complete(Json& answer) const override;
  Json write(std::size_t index, const std::string& text,
             const std::vector<OutputToken>& tokens) override;
  ToolCallReader::Found read(std::size_t index, const std::string& text,
                             const std::vector<OutputToken>& tokens);
  std::string with_marker(Turn& turn, const std::string& text,
                          const std::vector<OutputToken>& tokens) const;
  Json message_of(std::size_t index, const ToolCallReader::Found& found);
  Json call_json(Turn& turn, const ToolCall& call) const;
  Json logprobs_of(const std::vector<OutputToken>& tokens) const;
  Json entry_of(TokenId token, float logprob) const;

  const ToolFormat format_;
  const bool one_call_only_;
  const std::optional<TokenId> marker_;  ///< the special token that begins a call
  std::vector<Turn> turns_;
};

}  // namespace kvhive
