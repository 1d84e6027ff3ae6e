#pragma once
// The C++20 API of a kvhive client: connect to a running kvhived, submit prompts, read tokens as
// they are generated. Includes nothing but the standard library.
//
// Errors: a call that can fail returns a Result. Taking the value out of a Result that holds an
// error throws ClientException with the error's text.
//
// Threads: Clients are independent of each other. On one Client, submit(), read(), abort(),
// discard() and status() may be called from any thread at any time. wait() and generate() are for
// one thread at a time; a second thread gets ErrorCode::bad_argument. A process forked after
// connect() must not use the parent's Client.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#ifndef KVHIVE_API
#define KVHIVE_API __attribute__((visibility("default")))
#endif

namespace kvhive {

using TokenId = std::int32_t;

/// One code per thing a caller can do about it. The numbers are the C API's and never change.
enum class ErrorCode : std::int32_t {
  none = 0,
  bad_argument = 1,    ///< an option or a field is out of range; the text names it
  not_found = 2,       ///< what was named (an engine, a file) does not exist
  bad_format = 3,      ///< a message or file is malformed
  unsupported = 4,     ///< kvhive cannot do this yet
  pool_exhausted = 5,  ///< no room now: read results, close clients or ask for less
  never_fits = 6,      ///< the request is larger than the model or the pool ever allows
  out_of_memory = 7,   ///< the machine or one of its limits has less memory than asked for
  too_many_processes = 8,
  layout_mismatch = 9,  ///< library and daemon are of different versions
  already_running = 10,
  not_running = 11,  ///< no daemon listens on the socket, or it does not answer
  device_lost = 12,
  peer_died = 13,   ///< the daemon has ended; connect again and submit anew
  os_error = 14,    ///< a system call failed; the text names it
  overloaded = 15,  ///< too much is waiting already; try again after ClientError::retry_after
};

/// The code's name, for example "not_running".
KVHIVE_API std::string_view to_string(ErrorCode code);

/// A failure in one line: what failed, with which value, and what to do.
struct ClientError {
  ErrorCode code = ErrorCode::none;
  std::string text;
  std::chrono::milliseconds retry_after{0};  ///< if overloaded: a guess; 0 = nobody knows
};

/// Thrown when the value of a failed Result is asked for.
class ClientException : public std::runtime_error {
 public:
  explicit ClientException(const ClientError& error)
      : std::runtime_error("kvhive: " + error.text), code_(error.code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// A value, or the error that there is instead. Check it before you take the value:
///
///     auto client = kvhive::Client::connect();
///     if (!client) return complain(client.error().text);
///     client->generate(...);
///
/// value(), * and -> throw ClientException if there is no value.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
  Result(ClientError error) : held_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return held_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return throw_if_failed(), std::get<0>(held_); }
  const T& value() const& { return throw_if_failed(), std::get<0>(held_); }
  T&& value() && { return throw_if_failed(), std::get<0>(std::move(held_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// ErrorCode::none and an empty text if there is a value.
  const ClientError& error() const noexcept {
    static const ClientError kNone;
    const ClientError* error = std::get_if<1>(&held_);
    return error != nullptr ? *error : kNone;
  }

 private:
  void throw_if_failed() const {
    if (!has_value()) throw ClientException(error());
  }

  std::variant<T, ClientError> held_;
};

/// Success, or an error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(ClientError error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return error_.code == ErrorCode::none; }
  explicit operator bool() const noexcept { return has_value(); }
  void value() const {
    if (!has_value()) throw ClientException(error_);
  }
  const ClientError& error() const noexcept { return error_; }

 private:
  ClientError error_;
};

inline constexpr std::size_t kDefaultChannelBytes = std::size_t{2} << 20;

/// Members that are not named keep their defaults: `ClientOptions{.socket = path}`.
struct ClientOptions {
  /// The daemon's socket. Empty = $KVHIVE_SOCKET, else $XDG_RUNTIME_DIR/kvhive/kvhived.sock, else
  /// /run/kvhive/kvhived.sock.
  std::string socket{};
  /// The number of the one engine that serves this client. Nothing = all engines share its
  /// requests.
  std::optional<std::uint32_t> engine = std::nullopt;
  /// Shared memory for the outputs of all requests under way, 1 MiB to 1 GiB; 0 = the default.
  /// About 0.3 MiB of it are the library's. A request takes 32 bytes per token of max_tokens, at
  /// least 4 KiB; a scored prompt 16 per token and 8 per likeliest token (of a text each byte is
  /// counted as a token). All clients of a daemon together get 4 GiB. There is as much room for
  /// prompts; it takes this process's own memory, as they need it.
  std::size_t channel_bytes = kDefaultChannelBytes;
  /// How long connect() waits for a daemon that is stopped or overloaded.
  std::chrono::milliseconds connect_timeout{10'000};
  /// The domain whose cached blocks are shared. Empty = the one that the operator's rules give this
  /// user. The daemon's own user and root may ask for any that a rule names, others for those that
  /// name one of their groups.
  std::string domain{};
  /// Of a daemon that serves several models, the one whose engines serve this client, by its name.
  /// Empty = that of `engine`, else the first. Each client has one model; a process may have
  /// several clients.
  std::string model{};
};

struct GenerateRequest {
  std::string prompt;                  ///< UTF-8; ignored if there are prompt_tokens
  std::vector<TokenId> prompt_tokens;  ///< token ids instead of text
  std::uint32_t max_tokens = 16;
  float temperature = 0;   ///< 0 = greedy: always the likeliest token
  std::int32_t top_k = 0;  ///< only the k likeliest tokens; 0 or -1 = all
  float top_p = 1;         ///< only the likeliest tokens that make up this probability
  float min_p = 0;         ///< only tokens at least this times as likely as the likeliest
  std::optional<std::uint64_t> seed;  ///< same seed, same tokens; nothing = a random one
  std::uint32_t logprobs = 0;  ///< report the k likeliest tokens of each position, at most 20
  /// Score the prompt: Progress::prompt reports how likely each of its tokens is, and the k
  /// likeliest ones in its place, at most 20. Such a prompt is computed whole: nothing of it is
  /// read from the cache. What it computes is cached as usual.
  std::optional<std::uint32_t> prompt_logprobs{};
  bool ignore_eos = false;              ///< go on after an end-of-sequence token
  std::int32_t priority = 0;            ///< lower goes first, with --scheduling-policy priority
  std::vector<std::string> stop;        ///< end before any of these texts: at most 8 of 64 bytes
  std::vector<TokenId> stop_token_ids;  ///< end after any of these tokens: at most 16
  /// Bytes of room for the generated text; 0 = 16 per token, at least 4 KiB. Text that does not fit
  /// is dropped, its tokens are not.
  std::size_t most_text_bytes = 0;
  /// Prompts with different salts share no cached blocks, nor do prompts with one and those
  /// without: at most 128 bytes; empty = none. Whoever knows a salt shares what is cached under it,
  /// within the domain.
  std::string cache_salt{};
  /// The name of an adapter of the client's model to compute with, as the operator has named it
  /// (--lora-modules), at most 64 bytes; empty = the model alone.
  std::string adapter{};

  // Rules about tokens, as vLLM has them. They are applied in its order: allowed tokens, bad words,
  // min_tokens, biases, penalties. They decide which tokens are chosen; the log-probabilities that
  // are reported stay the model's.
  float presence_penalty = 0;   ///< -2..2: taken from the logits of tokens that the answer has
  float frequency_penalty = 0;  ///< -2..2: the same for each time that the answer has them
  /// Above 0: divides positive logits of tokens that prompt or answer have, and multiplies others.
  float repetition_penalty = 1;
  /// So many tokens are generated before the end-of-sequence token, or what stop and stop_token_ids
  /// name, ends the answer.
  std::uint32_t min_tokens = 0;
  std::map<TokenId, float> logit_bias{};     ///< -100..100 each, added to logits: at most 1,024
  std::vector<TokenId> allowed_token_ids{};  ///< only these: at most 262,144; empty = all
  /// Texts not to generate, at most 128 of 64 bytes. Only the last token of each is forbidden,
  /// where those before it have been generated.
  std::vector<std::string> bad_words{};
  /// The stop text that ends the answer stays in it (vLLM's include_stop_str_in_output).
  bool include_stop = false;
  /// Generate nothing, but say whether the prompt finds room now: Progress::room. Client::ask()
  /// sets it.
  bool only_asks = false;
  /// Instead of text and tokens: for each place of the prompt a row of `embedding_width` finite
  /// numbers, such as the model's embedding layer makes of tokens; the width is the model's
  /// hidden_size. Prompts share cached blocks if their rows are the same, bit for bit. There are no
  /// tokens to be scored (prompt_logprobs), nor for repetition_penalty.
  std::vector<float> prompt_embeds{};
  std::uint32_t embedding_width = 0;
  /// Other requests go on from this one's tokens as soon as it has ended, as the beams of a search
  /// do. What an engine has computed of a block that is not full is then kept for a tenth of a
  /// second or two, if no engine lacks blocks, and copied for those that come to it, instead of
  /// being computed again.
  bool will_be_forked = false;
};

/// The least ClientOptions::channel_bytes that this request fits into: 1 MiB or more.
KVHIVE_API std::size_t channel_bytes_for(const GenerateRequest& request);

/// A token and its log-probability before temperature.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct OutputToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  ///< likeliest first; empty unless logprobs were asked for
};

/// A token of a scored prompt. The first has nothing before it: its logprob and rank are 0.
struct PromptLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::uint32_t rank = 0;         ///< its place among all tokens, 1 = the likeliest
  std::vector<TokenLogprob> top;  ///< likeliest first
};

/// Why a request has ended.
enum class Finish : std::int32_t {
  none = 0,    ///< it has not ended
  stop = 1,    ///< an end-of-sequence token, a stop text or a stop token
  length = 2,  ///< max_tokens or the model's longest sequence reached
  abort = 3,   ///< abort() was called
  error = 4,   ///< Progress::error says why
  room = 5,    ///< it only asked for room; Progress::room is the answer
};
KVHIVE_API std::string_view to_string(Finish reason);

/// Whether a prompt finds room (vLLM's AllocStatus).
enum class Fit : std::int32_t {
  none = 0,   ///< it was not asked
  ok = 1,     ///< there is room for all its tokens now; requests that wait already go first
  later = 2,  ///< there is not, but there may be when others have ended
  never = 3,  ///< it is longer than the model or the pool ever allows; Room::text says why
};
KVHIVE_API std::string_view to_string(Fit fit);

/// What an engine says about a prompt, without queueing it. Blocks are those of the engine's tier,
/// in this client's domain.
struct Room {
  Fit fit = Fit::none;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;     ///< found in the cache: they need not be computed
  std::uint32_t needed_blocks = 0;     ///< besides those that are found and in use
  std::uint32_t available_blocks = 0;  ///< free, or cached and used by nobody
  std::string text;                    ///< if never: why, and what to do
};

/// Identifies a request within its Client. Never reused.
using RequestId = std::uint64_t;

/// What is new about a request since it was last read.
struct Progress {
  RequestId request = 0;
  std::vector<OutputToken> tokens;
  std::vector<PromptLogprob> prompt;  ///< if it was to be scored: once, with the first token
  std::string text;                   ///< UTF-8, completed by these tokens; may be empty
  std::uint32_t prompt_tokens = 0;    ///< known once an engine has admitted the request
  std::uint32_t cached_tokens = 0;    ///< tokens of the prompt that were found in the cache
  std::uint32_t preemptions = 0;
  /// The engine that works on the request, or that has finished it. Nothing = no engine works on
  /// it: none has accepted it yet, or the one that had has died and no other has taken over.
  std::optional<std::uint32_t> engine;
  Room room;  ///< if reason is Finish::room
  /// Not none = this was the last progress of the request.
  Finish reason = Finish::none;
  /// When finished: length of the whole text.
  std::size_t text_bytes = 0;
  ClientError error;  ///< if reason is Finish::error
};

/// How a Client is served now.
struct ClientStatus {
  /// An engine that serves the channel. Nothing = no engine does; the daemon is starting one, or
  /// the engine asked for in ClientOptions::engine does not run.
  std::optional<std::uint32_t> engine;
  std::size_t channel_bytes = 0;       ///< granted
  std::size_t requests_under_way = 0;  ///< submitted and not read to their end, of 256
};

/// A connection to a daemon, with a channel of shared memory of its own. Closed by the destructor,
/// which also ends the requests that are under way.
class KVHIVE_API Client {
 public:
  /// Errors: not_running = no daemon there, or no answer within connect_timeout; pool_exhausted =
  /// all channel memory is in use; what else the daemon refuses, with its reason.
  static Result<Client> connect(const ClientOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  /// Starts a request. Errors: bad_argument = a field is out of range; pool_exhausted = 256
  /// requests are under way, or the channel has no room (read some results, or use larger
  /// channel_bytes).
  Result<RequestId> submit(const GenerateRequest& request);

  /// Sleeps until there may be something new to read, the timeout has run out (not an error) or a
  /// signal has come. A negative timeout = for ever. When an engine dies, others take its
  /// requests over: the reader sees a pause. Errors: peer_died = the daemon has ended.
  Result<void> wait(std::chrono::milliseconds timeout = std::chrono::milliseconds(-1));

  /// For an event loop: readable (poll, epoll) while wait() would return at once. Call wait(0ms)
  /// then, and read() the requests. The Client keeps and closes it. -1 after a move.
  int descriptor() const noexcept;

  /// What is new about a request. Errors: bad_argument = no such request, or its end has been read.
  Result<Progress> read(RequestId request);

  /// Asks the engine to end a request; read() reports the end. No effect on one that has ended.
  void abort(RequestId request) noexcept;

  /// Ends a request that will not be read any more, and frees its room once the engine is done.
  void discard(RequestId request) noexcept;

  /// Submits, streams and waits for the end. The result has all tokens and the whole text; look at
  /// its reason: Finish::error is a result, too.
  /// \param on_progress  called in this thread with everything new, and every second while there is
  ///        nothing new: Progress::engine says whether an engine works on the request. It may call
  ///        abort(). If it throws, the request is discarded.
  Result<Progress> generate(const GenerateRequest& request,
                            const std::function<void(const Progress&)>& on_progress = {});

  /// Asks whether the request's prompt would find room now, and waits for the answer; nothing is
  /// queued, generated or cached. A prompt that is too long is an answer (Fit::never). Errors: as
  /// those of a request.
  /// \param on_progress  as of generate()
  Result<Room> ask(GenerateRequest request,
                   const std::function<void(const Progress&)>& on_progress = {});

  ClientStatus status() const;

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;  ///< null after a move
};

}  // namespace kvhive
