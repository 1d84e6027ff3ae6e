#include "tests/crash/channel/story.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "ipc/channel/doorbell.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kPromptTokens = 3;
constexpr std::uint32_t kFirstOfStory = 1000;  ///< so that no prompt token is a small number

TokenId token_of(std::uint32_t number, std::uint32_t index) {
  return static_cast<TokenId>(number * 100 + index);
}

/// Some tokens complete no text.
std::string text_of(std::uint32_t number, std::uint32_t index) {
  return std::string(index % 3, static_cast<char>('a' + number % 26));
}

std::string whole_text(std::uint32_t number, std::uint32_t tokens) {
  std::string text;
  for (std::uint32_t i = 0; i < tokens; ++i) text += text_of(number, i);
  return text;
}

/// How the prompt is scored, if it is.
std::vector<PromptToken> scores_of(std::uint32_t number) {
  std::vector<PromptToken> scores = {{token_of(number, 50), 0, 0, {}}};
  for (std::uint32_t i = 1; i < kPromptTokens; ++i)
    scores.push_back({token_of(number, 50 + i), -2, i, {{token_of(number, i), -1}}});
  return scores;
}

bool are_equal(const std::vector<PromptToken>& a, const std::vector<PromptToken>& b) {
  return std::ranges::equal(a, b, [](const PromptToken& x, const PromptToken& y) {
    return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank &&
           std::ranges::equal(x.top, y.top, [](const Sampled& s, const Sampled& t) {
             return s.token == t.token && s.logprob == t.logprob;
           });
  });
}

/// The number of a request whose prompt is as the client wrote it; nothing if it is not.
std::optional<std::uint32_t> number_of(const TakenRequest& taken) {
  const std::uint32_t number =
      taken.prompt_kind == PromptKind::tokens
          ? (taken.tokens.empty() ? 0 : std::uint32_t(taken.tokens.front()) - kFirstOfStory)
          : std::uint32_t(std::atoi(taken.text.c_str()));
  const ChannelRequest wanted = request_of(number);
  const bool is_whole =
      taken.text == wanted.prompt && taken.tokens == wanted.prompt_tokens &&
      taken.params.max_tokens == wanted.params.max_tokens &&
      taken.params.logprobs == wanted.params.logprobs &&
      taken.params.prompt_logprobs == wanted.params.prompt_logprobs &&
      taken.params.only_asks == wanted.params.only_asks &&
      taken.params.stop == wanted.params.stop && taken.params.rules == wanted.params.rules &&
      (!wanted.params.has_seed || taken.params.sampling.seed == wanted.params.sampling.seed);
  return is_whole ? std::optional(number) : std::nullopt;
}

/// Whether the client has rung since the last call. An engine hears each ring as an edge; reading
/// the bell does the same here.
bool has_rung(int engine_bell) {
  std::uint64_t rings = 0;
  return read(engine_bell, &rings, sizeof rings) == sizeof rings;
}

constexpr RoomStatus kRoom{AllocStatus::later, 1 << 20, 3 << 20, 1};
bool is_room(const RoomStatus& room) {
  return room.status == kRoom.status && room.needed_blocks == kRoom.needed_blocks &&
         room.available_blocks == kRoom.available_blocks &&
         room.cached_tokens == kRoom.cached_tokens;
}

std::string named(std::uint32_t number) { return "request " + std::to_string(number); }

}  // namespace

ChannelRequest request_of(std::uint32_t number) {
  ChannelRequest request;
  if (number % 2 == 0)
    for (std::uint32_t i = 0; i < kPromptTokens; ++i)
      request.prompt_tokens.push_back(static_cast<TokenId>(kFirstOfStory + number + i));
  else
    request.prompt = std::to_string(number) + ", once upon a time";
  request.params.max_tokens = kStoryTokens;
  request.params.logprobs = 1;
  if (number % 3 == 1) request.params.prompt_logprobs = 1;
  request.params.has_seed = number % 3 != 0;
  request.params.sampling.seed = request.params.has_seed ? number : 0;
  if (number % 4 == 0) request.params.stop = {"the end"};
  if (number % 3 == 2)
    request.params.rules = {
        .logit_bias = {{7, 1}}, .allowed_token_ids = {1, 2}, .bad_words = {"w"}};
  request.params.only_asks = number == kQuestion;
  request.most_text_bytes = 64;
  return request;
}

void StoryStatus::complain(const std::string& text) {
  if (complaints++ != 0) return;
  first[text.copy(first, sizeof first - 1)] = '\0';
}

// -- the client -----------------------------------------------------------------------------------

StoryClient::StoryClient(ClientChannel channel, int bell, StoryStatus& status)
    : channel_(std::move(channel)), bell_(bell), status_(&status) {}

const AnswerSlot& StoryClient::answer(std::uint32_t slot) const {
  return answer_in(channel_.raw_answers().data(), slot);
}
RequestMark& StoryClient::mark(std::uint32_t slot) const {
  return mark_in(channel_.raw_requests().data(), slot);
}
RequestBody& StoryClient::body(std::uint32_t slot) const {
  return body_in(channel_.raw_requests().data(), slot);
}

std::uint32_t StoryClient::submit(std::uint32_t number, const ChannelRequest& request) {
  const auto slot = channel_.submit(request);
  KV_CHECK(slot.has_value(), slot.error().text);
  KV_CHECK(*slot < kStorySlots, *slot);
  open_[*slot].number = number;
  return *slot;
}

bool StoryClient::read(std::uint32_t slot) {
  Open& open = open_.at(slot);
  const ChannelProgress progress = channel_.read(slot);
  check_tokens(open, progress);
  if (progress.reason == FinishReason::none) return false;
  check_end(open, progress);
  open_.erase(slot);
  return true;
}

void StoryClient::check_tokens(Open& open, const ChannelProgress& progress) {
  const bool is_scored = request_of(open.number).params.prompt_logprobs.has_value();
  const bool must_be_told = is_scored && open.tokens == 0 && !progress.tokens.empty();
  if (!are_equal(progress.prompt,
                 must_be_told ? scores_of(open.number) : std::vector<PromptToken>()))
    status_->complain(named(open.number) + ": the client read " +
                      std::to_string(progress.prompt.size()) + " scores of the prompt");
  for (const GeneratedToken& token : progress.tokens) {
    const TokenId expected = token_of(open.number, open.tokens);
    if (token.token != expected || token.top.size() != 1 || token.top[0].token != expected)
      status_->complain(named(open.number) + ": the client read token " +
                        std::to_string(token.token) + " in place " + std::to_string(open.tokens));
    ++open.tokens;
  }
  open.text += progress.text;
  if (open.text != whole_text(open.number, open.tokens))
    status_->complain(named(open.number) + ": the client read the text '" + open.text + "' after " +
                      std::to_string(open.tokens) + " tokens");
}

void StoryClient::check_end(const Open& open, const ChannelProgress& progress) {
  const bool is_right = [&] {
    if (progress.reason == FinishReason::length) return open.tokens == kStoryTokens;
    if (progress.reason == FinishReason::abort) return open.was_aborted;
    if (progress.reason == FinishReason::room)
      return open.number == kQuestion && is_room(progress.room);
    return progress.reason == FinishReason::error && open.may_be_refused &&
           !progress.error.text.empty();
  }();
  if (!is_right)
    status_->complain(named(open.number) + " ended by " + std::string(to_string(progress.reason)) +
                      " after " + std::to_string(open.tokens) + " tokens: " + progress.error.text);
}

void StoryClient::read_all() {
  for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot)
    if (has(slot)) read(slot);
}

void StoryClient::abort(std::uint32_t slot) {
  channel_.abort(slot);
  open_.at(slot).was_aborted = true;
}

void StoryClient::wake() {
  char rings[512];
  if (recv(bell_, rings, sizeof rings, MSG_DONTWAIT) > 0) read_all();
}

void StoryClient::check_has_seen_all() {
  for (const auto& [slot, open] : open_) {
    const SlotState state = answer(slot).state.load();
    if (!state.has_answer_to(mark(slot).submitted)) continue;
    if (state.phase() == Phase::finished)
      status_->complain(named(open.number) + ": the client sleeps although it has ended");
    else if (answer(slot).tokens.load() > open.tokens)
      status_->complain(named(open.number) + ": the client sleeps although a token is unread");
  }
}

void StoryClient::turn() {
  wake();
  check_has_seen_all();
  if (status_->must_conclude != 0 && !std::exchange(has_concluded_, true)) conclude();
  status_->open = static_cast<std::uint32_t>(open_.size());
}

void StoryClient::conclude() {
  for (const auto& [slot, open] : open_)
    status_->complain(named(open.number) + ": the client sleeps, and nobody rings");
  for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot)
    if (answer(slot).state.load().phase() != Phase::finished ||
        answer(slot).state.load().number != mark(slot).submitted)
      status_->complain("slot " + std::to_string(slot) + " has a request at the end");
  if (status_->complaints != 0) return;
  ChannelRequest request = request_of(0);
  const std::size_t log = request.params.max_tokens * record_bytes(request.params.logprobs);
  request.most_text_bytes = (channel_.raw_answers().size() - answers_offset()) / 16 * 16 - log;
  const auto slot = channel_.submit(request);
  if (!slot) return status_->complain("room in the heap is lost: " + slot.error().text);
  open_[*slot].number = 0;
}

// -- the engine -----------------------------------------------------------------------------------

StoryEngine::StoryEngine(std::shared_ptr<EngineChannel> channel, std::byte* requests,
                         std::byte* answers, int bell, StoryStatus& status)
    : channel_(std::move(channel)),
      raw_requests_(requests),
      raw_answers_(answers),
      bell_(bell),
      status_(&status) {
  channel_->on_change([this] { must_look_ = true; });
}

bool StoryEngine::receive() {
  for (TakenRequest& taken : channel_->take_submitted(limits, most_bytes, help))
    received_.push_back(std::move(taken));
  return channel_->has_more();
}

void StoryEngine::adopt() {
  for (const TakenRequest& taken : received_) adopt(taken);
  received_.clear();
}

void StoryEngine::take() {
  while (receive()) continue;
  adopt();
}

std::optional<std::uint32_t> StoryEngine::first_request() const {
  return requests_.empty() ? std::nullopt : std::optional(requests_.begin()->first);
}

void StoryEngine::adopt(const TakenRequest& taken) {
  const auto number = number_of(taken);
  // It may have lost the request meanwhile, and not know it.
  const bool is_lost = has(taken.slot) && !request(taken.slot).sink->read();
  if (!number || (has(taken.slot) && !is_lost))
    return status_->complain("the engine took a request from slot " + std::to_string(taken.slot) +
                             (number ? " twice" : " that is not as it was submitted"));
  Request& request = requests_[taken.slot] = {};
  request.number = *number;
  request.sink = channel_->sink(taken);
  const bool has_journal = !taken.journal.empty();
  if (has_journal && !request.sink->read()) {
    requests_.erase(taken.slot);
    return;
  }
  for (const TokenId token : taken.journal) {
    if (token != token_of(*number, request.tokens))
      status_->complain(named(*number) + ": token " + std::to_string(request.tokens) +
                        " of the journal is " + std::to_string(token));
    // As the scheduler replays a journal: without logprobs.
    request.sink->token({token, 0, {}}, text_of(*number, request.tokens++));
  }
  if (has_journal) request.sink->wait();
}

void StoryEngine::see_aborts() {
  for (const std::uint32_t slot : channel_->take_aborts()) {
    if (has(slot))
      finish(slot, FinishReason::abort);
    else
      status_->complain("an abort came for slot " + std::to_string(slot) +
                        ", whose request the engine does not have");
  }
  ring();
}

void StoryEngine::generate(std::uint32_t slot) {
  Request& r = request(slot);
  if (!std::exchange(r.is_running, true)) {
    if (!r.sink->start()) {
      requests_.erase(slot);
      return;
    }
    r.sink->admitted({kPromptTokens, 0, 0});
  }
  if (r.tokens == 0 && request_of(r.number).params.prompt_logprobs) {
    const std::vector<PromptToken> scores = scores_of(r.number);
    r.sink->prompt(0, std::span(scores).first(1));
    r.sink->prompt(1, std::span(scores).subspan(1));
  }
  const TokenId token = token_of(r.number, r.tokens);
  r.sink->token({token, -1, {{token, -1}}}, text_of(r.number, r.tokens));
  ++r.tokens;
}

void StoryEngine::generate_all(std::uint32_t slot) {
  while (has(slot) && request(slot).tokens < kStoryTokens) generate(slot);
}

void StoryEngine::preempt(std::uint32_t slot) {
  request(slot).sink->preempted();
  request(slot).is_running = false;
}

void StoryEngine::finish(std::uint32_t slot, FinishReason reason) {
  Request& r = request(slot);
  r.sink->finished(reason, {}, {kPromptTokens, 0, 0}, whole_text(r.number, r.tokens).size());
  requests_.erase(slot);
}

void StoryEngine::refuse(std::uint32_t slot) {
  const Error error{Errc::bad_argument, "the tokenizer knows no such word"};
  request(slot).sink->finished(FinishReason::error, error, {}, 0);
  ring();
  requests_.erase(slot);
}

void StoryEngine::answer(std::uint32_t slot) {
  OutputSink& sink = *request(slot).sink;
  if (sink.read()) {
    sink.room(kRoom);
    sink.finished(FinishReason::room, {}, {kPromptTokens, kRoom.cached_tokens, 0}, 0);
  }
  ring();
  requests_.erase(slot);
}

bool StoryEngine::hear() {
  limits = {};
  most_bytes = ~std::size_t{0};
  adopt();
  // The bell is heard before the channel is looked at: what is stored later rings again.
  if (!has_rung(bell_) && !must_look_) return false;
  must_look_ = false;
  take();
  see_aborts();
  return true;
}

void StoryEngine::check_has_heard_all() {
  for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot) {
    const SlotState state = answer_in(raw_answers_, slot).state.load();
    const RequestMark mark = mark_in(raw_requests_, slot);
    if (state.phase() == Phase::finished && state.number != mark.submitted)
      status_->complain("the engine sleeps although a request is in slot " + std::to_string(slot));
    if (state.phase() != Phase::finished && state.number == mark.aborted)
      status_->complain("the engine sleeps although an abort is in slot " + std::to_string(slot));
  }
}

void StoryEngine::end_all() {
  for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot) {
    if (!has(slot) || request(slot).number >= kPatient) continue;
    if (request(slot).number == kQuestion) {
      answer(slot);
      continue;
    }
    while (has(slot) && request(slot).tokens < kStoryTokens) {
      generate(slot);
      ring();
    }
    if (has(slot)) finish(slot);
    ring();
  }
}

void StoryEngine::take_all_that_waits() {
  // As if no other engine had done anything for a while.
  for (int i = 0; i <= Board::kLooks; ++i) channel_->board().look();
  help = kChannelSlots;
  take();
  help = 0;
  see_aborts();
}

void StoryEngine::turn() {
  if (!hear()) {
    if (channel_->watches()) take_all_that_waits();
    check_has_heard_all();
    end_all();
  }
  status_->running = running();
}

std::uint32_t StoryEngine::running() const {
  return static_cast<std::uint32_t>(
      std::count_if(requests_.begin(), requests_.end(),
                    [](const auto& entry) { return entry.second.number < kPatient; }));
}

void StoryEngine::close() {
  const std::weak_ptr<EngineChannel> channel = channel_;
  received_.clear();
  requests_.clear();
  channel_.reset();
  if (!channel.expired()) status_->complain("something holds a closed channel");
}

}  // namespace kvhive::testing
