#pragma once
// The client's end of a channel: fills slots, hands out its heap, reads results.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_object.hpp"
#include "ipc/channel_layout.hpp"

namespace kvhive {

/// What a client asks for: a text, or token ids if there are any.
struct GenerateRequest {
  std::string prompt;
  std::vector<TokenId> prompt_tokens;
  GenerationParams params;
  /// Room for the generated text; 0 = 16 bytes a token, at least 4 KiB.
  std::size_t most_text_bytes = 0;
};

/// What is new about a request since it was last read.
struct Progress {
  std::vector<GeneratedToken> tokens;
  std::string text;  ///< completed by these tokens
  RequestStats stats;
  std::uint32_t engine = 0;  ///< that works on it
  /// Not none = this was the last of it; its slot is vacant again.
  FinishReason reason = FinishReason::none;
  std::size_t text_bytes = 0;  ///< when finished: of the whole text (a stop string is cut off)
  Error error;
};

class ClientChannel {
 public:
  /// Maps a fresh channel; Errc::layout_mismatch if a daemon of another build has made it.
  static Expected<ClientChannel> open(const UniqueFd& memory, std::size_t bytes,
                                      UniqueFd engine_doorbell);

  /// Fills a slot and wakes the engine. Errors: no vacant slot, or no room left in the channel
  /// (both pool_exhausted: read some results first, or ask for a larger channel).
  Expected<std::uint32_t> submit(const GenerateRequest& request);

  /// What is new in `slot`, one that submit() returned and that has not finished yet.
  Progress read(std::uint32_t slot);

  /// Asks the engine to end it; read() reports the end when it has come.
  void abort(std::uint32_t slot);

  /// The mapped channel, for tests that play a hostile client.
  std::span<std::byte> raw() const { return {memory_.data(), memory_.size()}; }

 private:
  struct Open {
    ChannelRange prompt, log, text;
    std::uint32_t logprobs = 0;
    std::uint32_t tokens_read = 0;
    std::uint32_t text_read = 0;
  };

  ClientChannel(MappedMemory memory, UniqueFd doorbell);
  Expected<Open> reserve(const GenerateRequest& request);
  std::optional<ChannelRange> take(std::size_t bytes);
  void give_back(const Open& open);
  void put(const ChannelRange& range);
  void fill(RequestBody& body, const GenerateRequest& request, const Open& open);
  RequestSlot& slot(std::uint32_t index) const;
  void wake_engine() const;

  MappedMemory memory_;
  UniqueFd doorbell_;
  std::map<std::uint64_t, std::uint64_t> free_;  ///< heap ranges: offset -> bytes, never adjacent
  std::map<std::uint32_t, Open> open_;           ///< by slot
};

}  // namespace kvhive
