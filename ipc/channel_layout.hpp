#pragma once
// The memory between one client and the engine that serves it: a table of request slots, and a heap
// that the client alone hands out from. A request lives in its slot from submission to the last
// token; what the engine has generated stands in the slot's token log, which is stream and journal
// in one:
//  - the log has room for max_tokens from the start, so the engine never waits for a slow client;
//  - when an engine dies, the next one reads prompt and log and goes on after the last token.
// The client's bytes are untrusted: the engine copies what it reads once, checks the copy, and
// addresses the log only through its own numbers. A client can spoil its own requests, nothing
// else.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ipc/generation.hpp"

namespace kvhive {

inline constexpr std::uint64_t kChannelMagic = 0x3263766968766bull;  // "kvhivc2"
inline constexpr std::uint32_t kChannelSlots = 256;
inline constexpr std::uint32_t kMostStopStrings = 8;
inline constexpr std::uint32_t kMostStopTokens = 16;
inline constexpr std::size_t kStopBytes = 64;  ///< per stop string
inline constexpr std::size_t kErrorBytes = 256;
/// A request whose engines die at it, without a token between two deaths, is tried so often again.
inline constexpr std::uint32_t kMostTakeovers = 3;
inline constexpr std::size_t kLeastChannelBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMostChannelBytes = std::size_t{1} << 30;

enum class SlotState : std::uint32_t {
  vacant = 0,     ///< the client's to fill
  submitted = 1,  ///< filled; the engine's to take
  accepted = 2,   ///< an engine is at it (or was, if it died)
  finished = 3,   ///< the result is complete; the client's to read and vacate
};

enum class PromptKind : std::uint32_t { text = 0, tokens = 1 };

/// Part of the channel, from its first byte.
struct ChannelRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What the client writes before it submits. Copied by the engine once, then checked.
struct RequestBody {
  PromptKind prompt_kind;
  ChannelRange prompt;  ///< UTF-8 text, or int32 token ids
  ChannelRange log;     ///< max_tokens records of record_bytes(logprobs)
  /// Room for the generated text; what does not fit is not written (the tokens are).
  ChannelRange text;
  std::uint32_t max_tokens;
  std::uint32_t logprobs;
  std::uint32_t ignore_eos;
  std::int32_t priority;
  float temperature, top_p, min_p;
  std::int32_t top_k;
  std::uint64_t seed;
  std::uint32_t has_seed;  ///< 0 = `seed` was drawn by the client library, nobody asked for it
  std::uint32_t stop_count;
  std::uint32_t stop_token_count;
  std::array<std::uint32_t, kMostStopStrings> stop_bytes;
  std::array<std::array<char, kStopBytes>, kMostStopStrings> stop;
  std::array<TokenId, kMostStopTokens> stop_tokens;
};
static_assert(std::is_trivially_copyable_v<RequestBody>);

/// One token of the log; `logprobs` pairs of TopEntry follow it.
struct LogRecord {
  TokenId token;
  float logprob;
  std::uint32_t text_end;  ///< bytes of text that are complete with this token
  std::uint32_t top_count;
};
struct TopEntry {
  TokenId token;
  float logprob;
};
constexpr std::size_t record_bytes(std::uint32_t logprobs) {
  return sizeof(LogRecord) + logprobs * sizeof(TopEntry);
}

/// One request. `tokens` is stored after the record it counts; everything else the engine writes
/// before `state`.
struct alignas(64) RequestSlot {
  std::atomic<SlotState> state;
  std::atomic<std::uint32_t> wants_abort;
  std::atomic<std::uint32_t> tokens;  ///< records in the log
  std::uint32_t text_bytes;           ///< when finished: of the whole text
  FinishReason reason;
  std::uint32_t error;  ///< Errc
  std::array<char, kErrorBytes> error_text;
  std::atomic<std::uint32_t> prompt_tokens;  ///< known since admission
  std::atomic<std::uint32_t> cached_tokens;
  std::atomic<std::uint32_t> preemptions;
  std::atomic<std::uint32_t> engine;  ///< that accepted it last
  /// Engines that took it up from a dead one since its last new token, by their own count. A client
  /// that rewrites it has its request tried again, which it could have had by submitting it anew.
  std::atomic<std::uint32_t> takeovers;
  std::atomic<std::uint32_t> tokens_at_takeover;
  RequestBody body;
};
static_assert(std::is_standard_layout_v<RequestSlot>);

struct ChannelHeader {
  std::uint64_t magic;
  std::uint64_t bytes;
  std::uint32_t slot_bytes;  ///< sizeof(RequestSlot) of the build that made the channel
  std::uint32_t slots;
};

/// The heap begins after header and slots.
constexpr std::size_t slots_offset() { return 64; }
constexpr std::size_t heap_offset() { return slots_offset() + kChannelSlots * sizeof(RequestSlot); }

}  // namespace kvhive
