#pragma once
// The client's end of a channel: allocates from the heap, fills slots, reads results. The public
// library (client/) is built on it; not thread-safe.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_object.hpp"
#include "ipc/channel_layout.hpp"

namespace kvhive {

/// One request, as the client library passes it on.
struct ChannelRequest {
  std::string prompt;  ///< UTF-8; ignored if there are prompt_tokens
  std::vector<TokenId> prompt_tokens;
  GenerationParams params;
  /// Bytes of room for the generated text; 0 = 16 per token, at least 4 KiB.
  std::size_t most_text_bytes = 0;
};

/// What is new about a request since it was last read.
struct ChannelProgress {
  std::vector<GeneratedToken> tokens;
  std::string text;  ///< the text that `tokens` complete
  RequestStats stats;
  std::uint32_t engine = kNoEngine;  ///< the engine that works on the request, or has finished it
  /// If it is not `none`, the request has ended: this progress is its last, and its slot is vacant
  /// again.
  FinishReason reason = FinishReason::none;
  /// When finished: length of the whole text, without the stop string that ended it.
  std::size_t text_bytes = 0;
  Error error;
};

/// Bytes of the heap that a request needs, before rounding.
std::size_t heap_bytes(const ChannelRequest& request);

class ClientChannel {
 public:
  /// Maps a new channel; Errc::layout_mismatch if a daemon of another build has made it.
  [[nodiscard]] static Expected<ClientChannel> open(const UniqueFd& memory, std::size_t bytes,
                                                    UniqueFd engine_bell);

  /// Fills a slot and wakes the engine. Errors: bad_argument = a field is out of range;
  /// pool_exhausted = no vacant slot, or no room left in the channel (read some results first, or
  /// ask for a larger channel).
  [[nodiscard]] Expected<std::uint32_t> submit(const ChannelRequest& request);

  /// Returns what is new in `slot`. submit() has returned this slot, and read() has not reported
  /// the end of its request yet.
  ChannelProgress read(std::uint32_t slot);

  /// Asks the engine to end the request in `slot`; read() reports the end.
  void abort(std::uint32_t slot);

  /// The engine that serves this channel now, or kNoEngine.
  std::uint32_t serving_engine() const;

  /// The mapped channel, for tests that act as a hostile client.
  std::span<std::byte> raw() const { return {memory_.data(), memory_.size()}; }

 private:
  /// A request between submit() and the read() of its end.
  struct Open {
    ChannelRange prompt, log, text;
    std::uint32_t logprobs = 0;
    std::uint32_t tokens_read = 0;
    std::uint32_t text_read = 0;
  };

  ClientChannel(MappedMemory memory, UniqueFd engine_bell);
  [[nodiscard]] Expected<Open> reserve(const ChannelRequest& request);
  std::optional<ChannelRange> take(std::size_t bytes);
  void give_back(const Open& open);
  void put(const ChannelRange& range);
  void fill(RequestBody& body, const ChannelRequest& request, const Open& open);
  std::uint32_t engine_of(const RequestSlot& slot) const;
  RequestSlot& slot(std::uint32_t index) const;
  void wake_engine() const;

  MappedMemory memory_;
  UniqueFd engine_bell_;
  std::map<std::uint64_t, std::uint64_t> free_;  ///< heap ranges: offset -> bytes, never adjacent
  std::map<std::uint32_t, Open> open_;           ///< by slot
};

}  // namespace kvhive
