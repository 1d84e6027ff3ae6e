#pragma once
// The memory between one client and the engine that serves it: a header, a table of request slots,
// and a heap from which only the client allocates. A request stays in its slot from submission to
// the last token. The engine appends every generated token to the slot's token log. The client
// reads the log as a stream, and another engine reads it as a journal:
//  - the log has room for max_tokens from the start, so the engine never waits for a slow client;
//  - when an engine dies, the next one reads prompt and log and goes on after the last token.
// The engine does not trust the client's bytes: it copies what it reads once, checks the copy, and
// addresses the log only through its own numbers. A client can corrupt its own requests, nothing
// else.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ipc/generation.hpp"

namespace kvhive {

inline constexpr std::uint64_t kChannelMagic = 0x3463766968766bull;  // "kvhivc4"
inline constexpr std::uint32_t kChannelSlots = 256;
inline constexpr std::uint32_t kMostStopStrings = 8;
inline constexpr std::uint32_t kMostStopTokens = 16;
inline constexpr std::size_t kStopBytes = 64;  ///< per stop string
inline constexpr std::size_t kErrorBytes = 256;
/// When an engine dies, another engine takes its requests over. A request that runs when its engine
/// dies may be the cause of that death. It is taken over at most this many times without a new
/// token in between; then it is refused.
inline constexpr std::uint32_t kMostTakeovers = 3;
/// A request that only waits when its engine dies is hardly the cause, and is taken over this
/// often.
inline constexpr std::uint32_t kMostTakeoversWaiting = 32;
/// Stored instead of an engine's number when there is no engine.
inline constexpr std::uint32_t kNoEngine = ~0u;
inline constexpr std::size_t kLeastChannelBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMostChannelBytes = std::size_t{1} << 30;
/// What the client library asks for unless its user says otherwise.
inline constexpr std::size_t kUsualChannelBytes = std::size_t{2} << 20;

enum class SlotState : std::uint32_t {
  vacant = 0,     ///< empty; the client may fill it
  submitted = 1,  ///< filled; the engine may take it
  accepted = 2,   ///< an engine works on it, or did until it died
  finished = 3,   ///< the result is complete; the client reads it and sets `vacant`
};

enum class PromptKind : std::uint32_t { text = 0, tokens = 1 };

/// A range of the channel's bytes; `offset` counts from the channel's first byte.
struct ChannelRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What the client writes before it submits. The engine copies it once and checks the copy.
struct RequestBody {
  PromptKind prompt_kind;
  ChannelRange prompt;  ///< UTF-8 text, or int32 token ids
  ChannelRange log;     ///< room for max_tokens records of record_bytes(logprobs) bytes each
  /// Room for the generated text. Text that does not fit is dropped; its tokens are kept.
  ChannelRange text;
  std::uint32_t max_tokens;
  std::uint32_t logprobs;
  std::uint32_t ignore_eos;
  std::int32_t priority;
  float temperature, top_p, min_p;
  std::int32_t top_k;
  std::uint64_t seed;
  std::uint32_t has_seed;  ///< 0 = the client library drew `seed` at random
  std::uint32_t stop_count;
  std::uint32_t stop_token_count;
  std::array<std::uint32_t, kMostStopStrings> stop_bytes;
  std::array<std::array<char, kStopBytes>, kMostStopStrings> stop;
  std::array<TokenId, kMostStopTokens> stop_tokens;
};
static_assert(std::is_trivially_copyable_v<RequestBody>);

/// One token of the log. Room for RequestBody::logprobs entries of type TopEntry follows it; the
/// first `top_count` of them are filled in.
struct LogRecord {
  TokenId token;
  float logprob;
  std::uint32_t text_end;  ///< length in bytes of the text up to and including this token
  std::uint32_t top_count;
};
struct TopEntry {
  TokenId token;
  float logprob;
};
constexpr std::size_t record_bytes(std::uint32_t logprobs) {
  return sizeof(LogRecord) + logprobs * sizeof(TopEntry);
}

/// One request. The engine stores `tokens` after it has written the newest record, and `state`
/// after it has written all other fields: what a client reads after `tokens` or `state` is
/// complete.
struct alignas(64) RequestSlot {
  std::atomic<SlotState> state;
  std::atomic<std::uint32_t> wants_abort;
  std::atomic<std::uint32_t> tokens;  ///< records in the log
  std::uint32_t text_bytes;           ///< when finished: length of the whole text
  FinishReason reason;
  std::uint32_t error;  ///< Errc
  std::array<char, kErrorBytes> error_text;
  std::atomic<std::uint32_t> prompt_tokens;  ///< 0 until an engine has admitted the request
  std::atomic<std::uint32_t> cached_tokens;
  std::atomic<std::uint32_t> preemptions;
  std::atomic<std::uint32_t> engine;  ///< number of the engine that accepted the request last
  /// Not 0 = the engine is reading, tokenising or running the request; 0 = the request waits.
  std::atomic<std::uint32_t> is_running;
  /// How many engines have taken the request over from a dead engine since its last new token: when
  /// it was running, and when it was waiting. A client can rewrite these numbers and have its
  /// request tried again, but gains nothing: it could also submit the request anew.
  std::atomic<std::uint32_t> takeovers;
  std::atomic<std::uint32_t> takeovers_waiting;
  std::atomic<std::uint32_t> tokens_at_takeover;  ///< `tokens` at the last takeover
  RequestBody body;
};
static_assert(std::is_standard_layout_v<RequestSlot>);

/// The channel's first bytes. The keeper writes them. The engine that serves the channel writes
/// `engine`, too.
struct ChannelHeader {
  std::uint64_t magic = kChannelMagic;
  std::uint64_t bytes = 0;
  std::uint32_t slot_bytes = sizeof(RequestSlot);  ///< of the build that made the channel
  std::uint32_t slots = kChannelSlots;
  /// The engine that serves the channel now, or kNoEngine. Only the client library reads it, to
  /// tell its caller whether an engine is there to wait for.
  std::uint32_t engine = kNoEngine;
};

/// The heap begins after header and slots.
constexpr std::size_t slots_offset() { return 64; }
constexpr std::size_t heap_offset() { return slots_offset() + kChannelSlots * sizeof(RequestSlot); }

}  // namespace kvhive
