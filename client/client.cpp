#include "kvhive/client.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>

#include "client/connection.hpp"
#include "ipc/control_messages.hpp"

namespace kvhive {
namespace {

/// generate() reports at least this often.
constexpr std::chrono::milliseconds kReportPeriod{1000};

// The public numbers are fixed, those of base/expected.hpp travel over the socket: they are the
// same as long as no code is inserted.
static_assert(int(ErrorCode::bad_argument) == int(Errc::bad_argument));
static_assert(int(ErrorCode::pool_exhausted) == int(Errc::pool_exhausted));
static_assert(int(ErrorCode::not_running) == int(Errc::not_running));
static_assert(int(ErrorCode::os_error) == int(Errc::os_error));
static_assert(int(ErrorCode::overloaded) == int(Errc::overloaded));
static_assert(int(Finish::error) == int(FinishReason::error));
static_assert(int(Finish::room) == int(FinishReason::room));
static_assert(int(Fit::never) == int(AllocStatus::never));
static_assert(kDefaultChannelBytes == kUsualChannelBytes);

ClientError public_error(const Error& error) {
  return {ErrorCode(int(error.code)), error.text, error.retry_after};
}

ClientError bad_argument(std::string text) { return {ErrorCode::bad_argument, std::move(text)}; }

ClientError moved_from() {
  return bad_argument("this kvhive::Client was moved from; use the one it was moved to");
}

/// poll()'s milliseconds; a negative duration = for ever.
int poll_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) return -1;
  return static_cast<int>(
      std::min<std::chrono::milliseconds::rep>(timeout.count(), std::numeric_limits<int>::max()));
}

std::optional<std::uint32_t> engine_or_nothing(std::uint32_t engine) {
  return engine == kNoEngine ? std::nullopt : std::optional(engine);
}

ChannelRequest channel_request(const GenerateRequest& request) {
  ChannelRequest out;
  out.prompt = request.prompt;
  out.prompt_tokens = request.prompt_tokens;
  out.prompt_embeds = request.prompt_embeds;
  out.embedding_width = request.embedding_width;
  out.params.max_tokens = request.max_tokens;
  out.params.sampling = {request.temperature, request.top_k, request.top_p, request.min_p,
                         request.seed.value_or(0)};
  out.params.has_seed = request.seed.has_value();
  out.params.logprobs = request.logprobs;
  out.params.prompt_logprobs = request.prompt_logprobs;
  out.params.ignore_eos = request.ignore_eos;
  out.params.priority = request.priority;
  out.params.stop = request.stop;
  out.params.stop_token_ids = request.stop_token_ids;
  out.params.cache_salt = request.cache_salt;
  out.params.adapter = request.adapter;
  TokenRules& rules = out.params.rules;
  rules.presence_penalty = request.presence_penalty;
  rules.frequency_penalty = request.frequency_penalty;
  rules.repetition_penalty = request.repetition_penalty;
  rules.min_tokens = request.min_tokens;
  for (const auto& [token, bias] : request.logit_bias) rules.logit_bias.push_back({token, bias});
  rules.allowed_token_ids = request.allowed_token_ids;
  rules.bad_words = request.bad_words;
  out.params.include_stop = request.include_stop;
  out.params.only_asks = request.only_asks;
  out.params.will_be_forked = request.will_be_forked;
  out.most_text_bytes = request.most_text_bytes;
  return out;
}

std::vector<TokenLogprob> public_top(const std::vector<Sampled>& top) {
  std::vector<TokenLogprob> out;
  out.reserve(top.size());
  for (const Sampled& entry : top) out.push_back({entry.token, entry.logprob});
  return out;
}

Progress public_progress(RequestId request, ChannelProgress&& news) {
  Progress progress;
  progress.request = request;
  progress.tokens.reserve(news.tokens.size());
  for (const GeneratedToken& token : news.tokens)
    progress.tokens.push_back({token.token, token.logprob, public_top(token.top)});
  for (const PromptToken& token : news.prompt)
    progress.prompt.push_back({token.token, token.logprob, token.rank, public_top(token.top)});
  progress.text = std::move(news.text);
  progress.prompt_tokens = news.stats.prompt_tokens;
  progress.cached_tokens = news.stats.cached_tokens;
  progress.preemptions = news.stats.preemptions;
  progress.engine = engine_or_nothing(news.engine);
  progress.reason = Finish(int(news.reason));
  progress.text_bytes = news.text_bytes;
  if (news.reason == FinishReason::error) progress.error = public_error(news.error);
  if (news.reason == FinishReason::room)
    progress.room = {Fit(int(news.room.status)), progress.prompt_tokens,     progress.cached_tokens,
                     news.room.needed_blocks,    news.room.available_blocks, {}};
  return progress;
}

}  // namespace

std::string_view to_string(ErrorCode code) {
  const bool is_known = code >= ErrorCode::none && code <= ErrorCode::overloaded;
  return is_known ? to_string(Errc(int(code))) : "unknown";
}

std::string_view to_string(Finish reason) { return to_string(FinishReason(int(reason))); }

std::string_view to_string(Fit fit) { return to_string(AllocStatus(int(fit))); }

std::size_t channel_bytes_for(const GenerateRequest& request) {
  return std::max(kLeastChannelBytes, least_channel_bytes(channel_request(request)));
}

struct Client::State {
  explicit State(Connection opened) : connection(std::move(opened)) {}

  /// Reads discarded requests to their end, which makes their slots vacant.
  void sweep_discarded() {
    std::erase_if(discarded, [this](std::uint32_t slot) {
      return connection.channel.read(slot).reason != FinishReason::none;
    });
  }

  Connection connection;
  mutable std::mutex mutex;  ///< guards the channel and what follows
  std::map<RequestId, std::uint32_t> slots;
  std::vector<std::uint32_t> discarded;  ///< slots that discard() was called for
  RequestId next_request = 1;
  std::atomic<bool> is_waiting{false};
};

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Result<Client> Client::connect(const ClientOptions& options) {
  auto connection =
      Connection::open(options.socket, options.engine.value_or(kAnyEngine),
                       options.channel_bytes == 0 ? kDefaultChannelBytes : options.channel_bytes,
                       options.domain, options.model, poll_timeout(options.connect_timeout));
  if (!connection) return public_error(connection.error());
  return Client(std::make_unique<State>(std::move(*connection)));
}

Result<RequestId> Client::submit(const GenerateRequest& request) {
  if (!state_) return moved_from();
  const ChannelRequest wanted = channel_request(request);
  const std::lock_guard lock(state_->mutex);
  state_->sweep_discarded();
  const auto slot = state_->connection.channel.submit(wanted);
  if (!slot) return public_error(slot.error());
  const RequestId id = state_->next_request++;
  state_->slots.emplace(id, *slot);
  return id;
}

Result<void> Client::wait(std::chrono::milliseconds timeout) {
  if (!state_) return moved_from();
  if (state_->is_waiting.exchange(true))
    return bad_argument(
        "another thread waits on this kvhive::Client already; give each thread a Client of its "
        "own");
  const auto woken = state_->connection.wait(poll_timeout(timeout));
  state_->is_waiting = false;
  if (!woken) return public_error(woken.error());
  return {};
}

int Client::descriptor() const noexcept { return state_ ? state_->connection.news.get() : -1; }

Result<Progress> Client::read(RequestId request) {
  if (!state_) return moved_from();
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->slots.find(request);
  if (found == state_->slots.end())
    return bad_argument("there is no request " + std::to_string(request) +
                        " under way; its end has been read, or submit() never returned it");
  ChannelProgress news = state_->connection.channel.read(found->second);
  if (news.reason != FinishReason::none) state_->slots.erase(found);
  return public_progress(request, std::move(news));
}

void Client::abort(RequestId request) noexcept {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  if (const auto found = state_->slots.find(request); found != state_->slots.end())
    state_->connection.channel.abort(found->second);
}

void Client::discard(RequestId request) noexcept {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->slots.find(request);
  if (found == state_->slots.end()) return;
  state_->connection.channel.abort(found->second);
  state_->discarded.push_back(found->second);
  state_->slots.erase(found);
}

Result<Progress> Client::generate(const GenerateRequest& request,
                                  const std::function<void(const Progress&)>& on_progress) {
  const auto id = submit(request);
  if (!id) return id.error();
  struct DiscardAtExit {  // no effect after the end has been read
    Client& client;
    RequestId request;
    ~DiscardAtExit() { client.discard(request); }
  } const guard{*this, *id};

  Progress whole;
  while (true) {
    if (const auto woken = wait(kReportPeriod); !woken) return woken.error();
    auto news = read(*id);
    if (!news) return news.error();
    if (on_progress) on_progress(*news);
    whole.tokens.insert(whole.tokens.end(), news->tokens.begin(), news->tokens.end());
    whole.text += news->text;
    if (!news->prompt.empty()) whole.prompt = std::move(news->prompt);
    if (news->reason == Finish::none) continue;
    news->tokens = std::move(whole.tokens);
    news->text = std::move(whole.text);
    news->prompt = std::move(whole.prompt);
    return std::move(*news);
  }
}

Result<Room> Client::ask(GenerateRequest request,
                         const std::function<void(const Progress&)>& on_progress) {
  request.only_asks = true;
  request.max_tokens = 1;  // no room is needed for an answer
  request.min_tokens = 0;
  auto told = generate(request, on_progress);
  if (!told) return told.error();
  if (told->reason == Finish::room) return std::move(told->room);
  if (told->error.code != ErrorCode::never_fits) return told->error;
  Room room;
  room.fit = Fit::never;
  room.prompt_tokens = told->prompt_tokens;
  room.text = std::move(told->error.text);
  return room;
}

ClientStatus Client::status() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  state_->sweep_discarded();
  return {engine_or_nothing(state_->connection.channel.serving_engine()),
          state_->connection.channel_bytes, state_->slots.size() + state_->discarded.size()};
}

}  // namespace kvhive
