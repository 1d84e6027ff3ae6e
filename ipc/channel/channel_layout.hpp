#pragma once
// A channel: the memory between one client and the engines that serve it. It is two files of the
// same size, so that neither side can spoil what the other one writes:
//  - Requests: only the client writes them. A mark and a body for each slot, and a heap of prompts
//    and lists.
//    Their pages are the client's memory. The client maps and seals them before an engine gets the
//    channel; an engine reads them without a mapping (ipc/channel/request_file.hpp).
//  - Answers: only engines write them; the client maps them for reading. A slot for each of the
//    client's, and a heap of logs and texts. The client chooses the places in that heap.
// A request stays in its slot from submission to the last token. The engine appends every generated
// token to the request's log. The client reads the log as a stream, and another engine reads it as
// a journal:
//  - the log has room for max_tokens from the start, so the engine never waits for a slow client;
//  - when an engine dies, the next one reads prompt and log and goes on after the last token.
// The engine does not trust the client's bytes: it copies what it reads once and checks the copy. A
// client can spoil its own requests, nothing else.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/round_up.hpp"
#include "ipc/channel/generation.hpp"
#include "ipc/channel/rule_lists.hpp"
#include "ipc/channel/slot_state.hpp"

namespace kvhive {

inline constexpr std::uint64_t kChannelMagic = 0x6263766968766bull;  // "kvhivcb"
inline constexpr std::uint32_t kChannelSlots = 256;
inline constexpr std::uint32_t kMostStopStrings = 8;
inline constexpr std::uint32_t kMostStopTokens = 16;
inline constexpr std::size_t kStopBytes = 64;     ///< per stop string
inline constexpr std::size_t kSaltBytes = 128;    ///< of a cache salt
inline constexpr std::size_t kAdapterBytes = 64;  ///< of an adapter's name
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

enum class PromptKind : std::uint32_t { text = 0, tokens = 1, embeddings = 2 };

/// A range of the requests' or the answers' bytes; `offset` counts from the file's first byte.
struct ChannelRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What a client says about one slot. Stored after the request's body and prompt are complete; the
/// client then rings. A client numbers the requests of a slot 1, 2, 3 ...; 0 = none yet.
struct RequestMark {
  std::uint32_t submitted;  ///< number of the newest request
  std::uint32_t aborted;    ///< its number again, if the engine shall end it; else another
};

/// What the client writes before it submits.
struct RequestBody {
  std::uint32_t number;  ///< RequestMark::submitted
  PromptKind prompt_kind;
  /// Of the requests: UTF-8 text, int32 token ids, or rows of `embedding_width` values of f32.
  ChannelRange prompt;
  ChannelRange log;  ///< of the answers: max_tokens records of record_bytes(logprobs) bytes each
  /// Of the answers: room for the generated text. Text that does not fit is dropped; its tokens are
  /// kept.
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
  std::uint32_t salt_bytes;     ///< 0 = the request has no cache salt
  std::uint32_t adapter_bytes;  ///< 0 = the model alone
  std::uint32_t prompt_logprobs;
  /// Of the answers: a PromptRecord for each token of the prompt, each with room for
  /// `prompt_logprobs` entries. Written whole before the answer's first token is. No bytes = the
  /// prompt is not to be scored. A text may have as many tokens as this has room for.
  ChannelRange prompt_log;
  float presence_penalty, frequency_penalty, repetition_penalty;
  std::uint32_t min_tokens;
  std::uint32_t include_stop;
  std::uint32_t only_asks;  ///< for room; the log stays empty
  std::uint32_t embedding_width;
  std::uint32_t will_be_forked;
  RuleCounts rule_counts;
  ChannelRange rule_lists;  ///< of the requests (rule_lists.hpp); no bytes = all are empty
  std::array<std::array<char, kStopBytes>, kMostStopStrings> stop;
  std::array<char, kSaltBytes> salt;
  std::array<char, kAdapterBytes> adapter;
  std::array<TokenId, kMostStopTokens> stop_tokens;
};
static_assert(std::is_trivially_copyable_v<RequestBody>);

/// One token of the log. RoomStatus for RequestBody::logprobs entries of type TopEntry follows it;
/// the first `top_count` of them are filled in.
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

/// One token of the prompt (PromptToken). Entries follow it as they follow a LogRecord.
struct PromptRecord {
  TokenId token;
  float logprob;
  std::uint32_t rank;
  std::uint32_t top_count;
};
static_assert(sizeof(PromptRecord) == sizeof(LogRecord));

/// The answer to one request. Only the engine that `state` names writes the other fields. It stores
/// `tokens` after it has written the newest record, and `state` after it has written all other
/// fields: what a client reads after `tokens` or `state` is complete. All fields belong to the
/// request that `state` names, except while that is read (SlotState::has_answer_to()).
struct alignas(64) AnswerSlot {
  std::atomic<SlotState> state;
  std::atomic<std::uint32_t> tokens;  ///< records in the log
  std::uint32_t text_bytes;           ///< when finished: length of the whole text
  FinishReason reason;
  std::uint32_t error;           ///< Errc
  std::uint32_t retry_after_ms;  ///< if the error is Errc::overloaded; 0 = nobody knows
  std::array<char, kErrorBytes> error_text;
  AllocStatus room;  ///< if the reason is FinishReason::room, with the two numbers of RoomStatus
  std::uint32_t needed_blocks, available_blocks;
  std::atomic<std::uint32_t> prompt_tokens;  ///< 0 until an engine has admitted the request
  std::atomic<std::uint32_t> cached_tokens;
  std::atomic<std::uint32_t> preemptions;
  std::atomic<std::uint64_t> taken, admitted, first_token;  ///< RequestTimes
  std::atomic<std::uint32_t> engine;  ///< number of the engine that took the request last
  /// How many engines have taken the request over from a dead engine since its last new token: when
  /// that engine worked on it, and when it waited.
  std::atomic<std::uint32_t> takeovers;
  std::atomic<std::uint32_t> takeovers_waiting;
  std::atomic<std::uint32_t> tokens_at_takeover;  ///< `tokens` at the last takeover
  RequestBody body;  ///< the engine's copy: the client may rewrite its own
};
static_assert(std::is_standard_layout_v<AnswerSlot>);

/// The answers' first bytes. The keeper writes them.
struct ChannelHeader {
  std::uint64_t magic = kChannelMagic;
  std::uint64_t bytes = 0;                        ///< of the answers, and of the requests
  std::uint32_t slot_bytes = sizeof(AnswerSlot);  ///< of the build that made the channel
  std::uint32_t body_bytes = sizeof(RequestBody);
  std::uint32_t slots = kChannelSlots;
  /// The number of an engine that has been given the channel, or kNoEngine, and the process slots
  /// of all that have: bit i = slot i. Only the client library reads them, to tell its caller
  /// whether an engine is there to wait for.
  std::uint32_t engine = kNoEngine;
  std::uint32_t engine_slots = 0;
};
static_assert(kMaxProcesses <= 32);

// Where things are: marks, bodies, prompts; header, slots, logs and texts.
using RequestMarks = std::array<RequestMark, kChannelSlots>;
constexpr std::size_t body_offset(std::uint32_t slot) {
  return sizeof(RequestMarks) + slot * sizeof(RequestBody);
}
constexpr std::size_t prompts_offset() { return round_up(body_offset(kChannelSlots), 64); }
constexpr std::size_t slots_offset() { return 64; }
constexpr std::size_t answers_offset() {
  return slots_offset() + kChannelSlots * sizeof(AnswerSlot);
}

}  // namespace kvhive
