#pragma once
// Whether a request is one that an engine can serve. What is looked at is the engine's own copy:
// the client may rewrite its at any time.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/expected.hpp"
#include "ipc/channel/channel_layout.hpp"

namespace kvhive {

/// The longest prompts that an engine can serve. A longer prompt is refused before it is copied.
struct PromptLimits {
  std::size_t text_bytes = ~std::size_t{0};
  std::size_t tokens = ~std::size_t{0};  ///< of prompt and output together
  /// Values of a row, if a prompt is given as embeddings; 0 = none may be.
  std::uint32_t embedding_width = 0;
  std::string remedy = "shorten it";  ///< for the error text
};

/// Bytes of a channel's two files.
struct ChannelRoom {
  std::size_t requests = 0;  ///< the client's
  std::size_t answers = 0;   ///< the engines'
};

/// Checks that all numbers are in their bounds and all ranges in the channel, where they belong.
/// Error: what is wrong, for the client.
[[nodiscard]] Expected<void> check_request(const RequestBody& body, const PromptLimits& limits,
                                           const ChannelRoom& room);

/// The tokens of a checked request's prompt, as good as is known before it is tokenised.
std::size_t prompt_tokens(const RequestBody& body);
/// The request's rules without their lists.
TokenRules scalar_rules(const RequestBody& body);

}  // namespace kvhive
