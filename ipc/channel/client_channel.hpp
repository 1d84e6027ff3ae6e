#pragma once
// The client's end of a channel: allocates from both heaps, writes requests, reads answers. The
// public library (client/) is built on it; not thread-safe.

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory/memory_object.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "ipc/channel/range_heap.hpp"

namespace kvhive {

/// One request, as the client library passes it on.
struct ChannelRequest {
  std::string prompt;  ///< UTF-8; ignored if there are prompt_tokens
  std::vector<TokenId> prompt_tokens;
  /// Instead of tokens, rows of `embedding_width` values; taken if there are any.
  std::vector<float> prompt_embeds{};
  std::uint32_t embedding_width = 0;
  GenerationParams params;
  /// Bytes of room for the generated text; 0 = 16 per token, at least 4 KiB.
  std::size_t most_text_bytes = 0;
};

/// What is new about a request since it was last read.
struct ChannelProgress {
  std::vector<GeneratedToken> tokens;
  std::string text;                 ///< the text that `tokens` complete
  std::vector<PromptToken> prompt;  ///< if it was to be scored: once, with the first token
  RequestStats stats;
  std::uint32_t engine = kNoEngine;  ///< the engine that works on the request, or has finished it
  /// If it is not `none`, the request has ended: this progress is its last, and its slot is free
  /// again.
  FinishReason reason = FinishReason::none;
  /// When finished: length of the whole text, without the stop string that ended it.
  std::size_t text_bytes = 0;
  Error error;
  RoomStatus room;  ///< if the reason is FinishReason::room
};

/// The smallest channel in which the request has room.
std::size_t least_channel_bytes(const ChannelRequest& request);

class ClientChannel {
 public:
  /// Maps a new channel; Errc::layout_mismatch if a daemon of another build has made it.
  [[nodiscard]] static Expected<ClientChannel> open(UniqueFd requests, const UniqueFd& answers,
                                                    std::size_t bytes, UniqueFd engine_bell);

  /// Fills a slot and wakes the engine. Errors: bad_argument = a field is out of range;
  /// pool_exhausted = no free slot, or no room left in the channel (read some results first, or ask
  /// for a larger channel); out_of_memory = the system has no memory for the prompt.
  [[nodiscard]] Expected<std::uint32_t> submit(const ChannelRequest& request);

  /// Returns what is new in `slot`. submit() has returned this slot, and read() has not reported
  /// the end of its request yet.
  ChannelProgress read(std::uint32_t slot);

  /// Asks the engine to end the request in `slot`; read() reports the end.
  void abort(std::uint32_t slot);

  /// An engine that serves this channel now, or kNoEngine.
  std::uint32_t serving_engine() const;

  /// The mapped files, for tests that act as a hostile client. The answers are mapped for reading.
  std::span<std::byte> raw_requests() const { return {requests_.data(), requests_.size()}; }
  std::span<std::byte> raw_answers() const { return {answers_.data(), answers_.size()}; }

 private:
  /// A request between submit() and the read() of its end.
  struct Open {
    ChannelRange prompt, rule_lists, log, prompt_log, text;
    std::uint32_t number = 0;
    std::uint32_t logprobs = 0;
    std::uint32_t prompt_logprobs = 0;
    std::uint32_t tokens_read = 0;
    std::uint32_t text_read = 0;
  };

  ClientChannel(UniqueFd file, MappedMemory requests, MappedMemory answers, UniqueFd engine_bell);
  [[nodiscard]] Expected<Open> reserve(const ChannelRequest& request);
  [[nodiscard]] Expected<void> allocate(std::size_t end);
  void give_back(const Open& open);
  void fill(std::uint32_t slot, const ChannelRequest& request, const Open& open);
  void read_tokens(Open& open, std::uint32_t tokens, ChannelProgress& progress) const;
  std::vector<PromptToken> read_prompt(const Open& open, std::size_t tokens) const;
  std::vector<Sampled> read_top(std::size_t offset, std::uint32_t count) const;
  void read_text(Open& open, std::uint32_t end, ChannelProgress& progress) const;
  bool is_served_by(EngineLife engine) const;
  RequestMark& mark(std::uint32_t slot) const;
  const AnswerSlot& answer(std::uint32_t slot) const;
  void wake_engine() const;

  UniqueFd file_;  ///< of the requests
  MappedMemory requests_, answers_;
  UniqueFd engine_bell_;
  std::size_t allocated_ = 0;  ///< the requests' bytes before this one have memory
  RangeHeap prompts_, results_;
  std::array<std::uint32_t, kChannelSlots> numbers_{};  ///< of each slot's newest request
  std::map<std::uint32_t, Open> open_;                  ///< by slot
};

}  // namespace kvhive
