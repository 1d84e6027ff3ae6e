#include "ipc/channel/engine_channel.hpp"

#include <algorithm>
#include <cstring>

#include "base/kill_point.hpp"
#include "base/stop_watch.hpp"
#include "config/models/lora_modules.hpp"
#include "ipc/channel/channel_memory.hpp"

namespace kvhive {
namespace {

static_assert(kMostAdapterNameBytes <= kAdapterBytes, "a request can name every adapter");

/// Sets the counts of takeovers to 0, for a new request in the slot.
void forget_takeovers(AnswerSlot& slot) {
  slot.takeovers.store(0, std::memory_order_relaxed);
  KV_KILL_POINT("takeover.forgotten_in_part");
  slot.takeovers_waiting.store(0, std::memory_order_relaxed);
  slot.tokens_at_takeover.store(0, std::memory_order_relaxed);
}

/// Counts that this engine takes the request over from a dead engine, which had it in this phase.
/// The request may be the cause of that death, so the takeover is counted before the request is
/// read. If tokens were generated since the last takeover, the counts start again.
void count_takeover(AnswerSlot& slot, Phase phase) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const std::uint32_t tokens = slot.tokens.load(relaxed);
  if (tokens > slot.tokens_at_takeover.load(relaxed)) forget_takeovers(slot);
  const bool was_worked_on = phase == Phase::taking || phase == Phase::running;
  auto& count = was_worked_on ? slot.takeovers : slot.takeovers_waiting;
  KV_KILL_POINT("takeover.to_be_counted");
  count.store(count.load(relaxed) + 1, relaxed);
  KV_KILL_POINT("takeover.counted");
  slot.tokens_at_takeover.store(tokens, relaxed);
}

Expected<void> check_takeovers(const AnswerSlot& slot) {
  const auto refused = [](std::uint32_t count, const char* what) {
    return failure(Errc::peer_died, "its engine died " + std::to_string(count) + " times while " +
                                        what + "; not tried again");
  };
  const std::uint32_t running = slot.takeovers.load(std::memory_order_relaxed);
  const std::uint32_t waiting = slot.takeovers_waiting.load(std::memory_order_relaxed);
  if (running > kMostTakeovers) return refused(running, "serving it");
  if (waiting > kMostTakeoversWaiting) return refused(waiting, "it waited");
  return {};
}

/// A new request, of which nothing is generated: what the slot says of the last one goes.
void clear(AnswerSlot& slot) {
  constexpr auto relaxed = std::memory_order_relaxed;
  slot.tokens.store(0, relaxed);
  KV_KILL_POINT("accept.log_emptied");
  slot.text_bytes = 0;
  slot.reason = FinishReason::none;
  slot.prompt_tokens.store(0, relaxed);
  slot.cached_tokens.store(0, relaxed);
  slot.preemptions.store(0, relaxed);
  slot.admitted.store(0, relaxed);
  slot.first_token.store(0, relaxed);
  forget_takeovers(slot);
}

std::size_t memory_of_rules(std::size_t list_bytes, float repetition_penalty,
                            std::size_t prompt_tokens) {
  return list_bytes + (repetition_penalty != 1 ? prompt_tokens * sizeof(TokenId) : 0);
}

/// \param body  checked
std::size_t memory_for(const RequestBody& body, const PromptLimits& limits) {
  const bool is_text = body.prompt_kind == PromptKind::text;
  const bool is_tokens = body.prompt_kind == PromptKind::tokens;
  const std::size_t tokens =
      is_text ? std::min<std::size_t>(body.prompt.bytes, limits.tokens) : prompt_tokens(body);
  const std::size_t output = std::min<std::size_t>(body.max_tokens, limits.tokens);
  return kRequestMemory + (is_tokens ? 0 : body.prompt.bytes) + (tokens + output) * kTokenMemory +
         memory_of_rules(body.rule_lists.bytes, body.repetition_penalty, tokens);
}

GenerationParams params_of(const RequestBody& body) {
  GenerationParams params;
  params.max_tokens = body.max_tokens;
  params.sampling = {body.temperature, body.top_k, body.top_p, body.min_p, body.seed};
  params.has_seed = body.has_seed != 0;
  params.logprobs = body.logprobs;
  if (body.prompt_log.bytes != 0) params.prompt_logprobs = body.prompt_logprobs;
  params.ignore_eos = body.ignore_eos != 0;
  params.priority = body.priority;
  for (std::uint32_t i = 0; i < body.stop_count; ++i)
    params.stop.emplace_back(body.stop[i].data(), body.stop_bytes[i]);
  params.stop_token_ids.assign(body.stop_tokens.begin(),
                               body.stop_tokens.begin() + body.stop_token_count);
  params.cache_salt.assign(body.salt.data(), body.salt_bytes);
  params.adapter.assign(body.adapter.data(), body.adapter_bytes);
  params.rules = scalar_rules(body);
  params.include_stop = body.include_stop != 0;
  params.only_asks = body.only_asks != 0;
  params.will_be_forked = body.will_be_forked != 0;
  return params;
}

}  // namespace

// -- memory held for requests ---------------------------------------------------------------------

HeldMemory::HeldMemory(std::shared_ptr<EngineChannel> channel, std::size_t bytes)
    : channel_(std::move(channel)), bytes_(bytes) {
  channel_->held_ += bytes_;
}

HeldMemory::~HeldMemory() { channel_->release(bytes_); }

void HeldMemory::settle(std::size_t prompt_tokens, std::size_t max_tokens, const TokenRules& rules,
                        std::size_t rows_bytes) {
  const std::size_t bytes =
      kRequestMemory + rows_bytes + (prompt_tokens + max_tokens) * kTokenMemory +
      memory_of_rules(list_bytes(rules), rules.repetition_penalty, prompt_tokens);
  channel_->held_ += bytes;
  channel_->release(std::exchange(bytes_, bytes));
}

void EngineChannel::release(std::size_t bytes) {
  held_ -= bytes;
  if (wants_room_.exchange(false)) tell_change();
}

void EngineChannel::tell_change() {
  const std::lock_guard lock(on_change_mutex_);
  if (on_change_) on_change_();
}

void EngineChannel::on_change(std::function<void()> on_change) {
  const std::lock_guard lock(on_change_mutex_);
  on_change_ = std::move(on_change);
}

bool EngineChannel::has_room_for(std::size_t bytes) const {
  const std::size_t held = held_.load(), most = answers_.size() * kMemoryPerChannelByte;
  return held == 0 || bytes <= most - std::min(most, held);
}

/// Whether there is no memory for the request now. on_change_ is called then when memory is
/// released.
bool EngineChannel::must_wait(const RequestBody& body, const PromptLimits& limits) {
  const std::size_t needed = memory_for(body, limits);
  if (has_room_for(needed)) return false;
  wants_room_ = true;
  if (!has_room_for(needed)) return true;  // looks again: it may have been released in between
  wants_room_ = false;
  return false;
}

// -- the channel ----------------------------------------------------------------------------------

Expected<std::shared_ptr<EngineChannel>> EngineChannel::open(std::uint64_t id, const Member& self,
                                                             UniqueFd&& requests,
                                                             const UniqueFd& answers,
                                                             std::size_t bytes,
                                                             std::unique_ptr<ClientRing> client) {
  auto map = MappedMemory::map(answers.get(), bytes, Access::read_write, kAnswersName);
  if (!map) return forward_error(map);
  if (bytes < std::max(prompts_offset(), answers_offset()))
    return failure(Errc::bad_format, "channel of " + std::to_string(bytes) + " bytes is too small");
  ChannelHeader header;
  std::memcpy(&header, map->data(), sizeof header);
  if (auto valid = check_channel_header(header, bytes); !valid) return forward_error(valid);
  auto channel = in_memory(id, self, RequestFile(std::move(requests), bytes),
                           {map->data(), map->size()}, std::move(client));
  channel->map_ = std::move(*map);
  return channel;
}

std::shared_ptr<EngineChannel> EngineChannel::in_memory(std::uint64_t id, const Member& self,
                                                        RequestFile requests,
                                                        std::span<std::byte> answers,
                                                        std::unique_ptr<ClientRing> client) {
  return std::shared_ptr<EngineChannel>(
      new EngineChannel(id, self, std::move(requests), answers, std::move(client)));
}

EngineChannel::EngineChannel(std::uint64_t id, const Member& self, RequestFile requests,
                             std::span<std::byte> answers, std::unique_ptr<ClientRing> client)
    : id_(id),
      self_(self),
      requests_(std::move(requests)),
      answers_(answers),
      client_(std::move(client)) {}

/// If the engine is the last that has the client's file open, closing it frees the file's memory.
EngineChannel::~EngineChannel() { close(requests_.take()); }

AnswerSlot& EngineChannel::answer(std::uint32_t slot) const {
  return reinterpret_cast<AnswerSlot*>(answers_.data() + slots_offset())[slot];
}

/// False if the client's file cannot be read: then no slot has anything new.
bool EngineChannel::look_at_marks() {
  RequestMarks marks;
  if (!requests_.read(0, std::as_writable_bytes(std::span(marks)))) return false;
  had_news_ = had_news_ || std::memcmp(&marks, &marks_, sizeof marks) != 0;
  marks_ = marks;
  std::atomic_thread_fence(std::memory_order_acquire);  // bodies are read after their marks
  return true;
}

std::vector<TakenRequest> EngineChannel::take_submitted(const PromptLimits& limits,
                                                        std::size_t most_bytes, std::size_t help) {
  std::vector<TakenRequest> taken;
  std::size_t cost = 0;
  std::uint32_t passed = 0;
  bool waits = false;
  const bool hangs = is_shared_ && self_.board->hangs(self_.life);
  Help of_others{hangs ? 0 : help, {}};
  const std::size_t refused_late = late_refusals_.exchange(0, std::memory_order_relaxed);
  const bool watched = std::exchange(watches_, false);
  const bool doubted = std::exchange(doubts_, false);
  refused_ = refused_late;
  refused_at_once_ = 0;
  had_news_ = false;
  if (!look_at_marks()) passed = kChannelSlots;
  if (is_shared_) of_others.since.rooms = rooms_after_turns();
  for (; passed < kChannelSlots && cost < most_bytes; ++passed) {
    if (const auto found = find(next_slot_, of_others)) {
      const RequestBody body = copy_body(*found);
      const auto valid = check(*found, body, limits);
      waits = valid && must_wait(body, limits);
      if (waits) break;
      if (accept(*found, body)) {
        auto request = valid ? take(*found, body, limits) : forward_error(valid);
        cost += kRequestCost;
        if (request) {
          of_others.left -= std::min<std::size_t>(of_others.left, 1);
          self_.board->take(self_.life);
          if (found->seen.phase() == Phase::waiting) self_.board->relieve(found->seen.owner());
          ++of_others.since.taken;
          if (auto& rooms = of_others.since.rooms; rooms && found->seen.phase() != Phase::finished)
            --(*rooms)[self_.life.slot];
          of_others.since.tokens += static_cast<std::uint32_t>(prompt_tokens(body));
          cost += request->text.size() + request->tokens.size() * sizeof(TokenId) +
                  body.rule_lists.bytes + request->journal.size() * sizeof(LogRecord);
          taken.push_back(std::move(*request));
        } else {
          ++refused_;
          ++refused_at_once_;
          finish(answer(found->slot), FinishReason::error, request.error(), 0);
        }
      }
    }
    next_slot_ = (next_slot_ + 1) % kChannelSlots;
  }
  has_more_ = passed < kChannelSlots && !waits;
  if (passed < kChannelSlots) {  // not all slots were looked at
    watches_ = watches_ || watched;
    doubts_ = doubts_ || (doubted && !waits);  // what waits for memory is told
  }
  ring();
  return taken;
}

/// Where marks are older than the slot's word, a request more or less does not matter.
Rooms EngineChannel::rooms_after_turns() const {
  std::array<RequestName, kChannelSlots> turns;
  std::size_t count = 0;
  for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot) {
    const SlotState seen = answer(slot).state.load(std::memory_order_relaxed);
    const std::uint32_t submitted = marks_[slot].submitted;
    if (seen.phase() == Phase::finished && submitted != seen.number)
      turns[count++] = {id_, slot, submitted};
  }
  return self_.board->rooms_after(self_.life, std::span(turns).first(count));
}

/// The number of the slot's newest request; the one that was known if it cannot be read.
std::uint32_t EngineChannel::newest_request(std::uint32_t slot) const {
  RequestMark mark = marks_[slot];
  (void)requests_.read(slot * sizeof mark, std::as_writable_bytes(std::span(&mark, 1)));
  std::atomic_thread_fence(std::memory_order_acquire);  // as in look_at_marks()
  return mark.submitted;
}

/// What the slot holds for this engine to take; nothing for nearly all slots.
std::optional<EngineChannel::Found> EngineChannel::find(std::uint32_t slot, Help& help) {
  const SlotState seen = answer(slot).state.load(std::memory_order_acquire);
  const EngineLife owner = seen.owner();
  const bool is_mine = owner == self_.life;
  const bool is_dead = !is_mine && self_.board->is_dead(owner);
  if (seen.phase() == Phase::finished) {
    if (marks_[slot].submitted == seen.number) {
      if (is_dead && owner.life != 0) ring_for(slot, seen);
      return std::nullopt;
    }
    forget_left(slot, seen);
    if (!takes_turn({id_, slot, marks_[slot].submitted}, help)) return leave_for_now();
    // The marks are older than the word: another engine may have taken and ended what they call
    // new. A mark that is read after the word is not.
    const std::uint32_t submitted = newest_request(slot);
    if (submitted == seen.number) return std::nullopt;
    return Found{slot, seen, submitted, false};
  }
  if (is_mine) return std::nullopt;
  forget_left(slot, seen);
  if (is_dead) {
    if (help.left == 0 && !is_for_me({id_, slot, seen.number}, help.since)) return leave_for_now();
    return Found{slot, seen, seen.number, true};
  }
  switch (seen.phase()) {
    case Phase::waiting: {
      const bool is_stopped = self_.board->is_deaf(owner) ||
                              (self_.board->hangs(owner) && !self_.board->hangs(self_.life));
      const bool may = is_stopped ? is_for_me({id_, slot, seen.number}, help.since)
                                  : help.left != 0 && may_take_from(owner, help);
      if (!may) return leave_for_now();
      return Found{slot, seen, seen.number, false};
    }
    // The other engine may be stopped just now, and this one has seen the ring for the request.
    case Phase::reading:
    case Phase::taking: return leave_for_now();
    default: return std::nullopt;
  }
}

std::optional<EngineChannel::Found> EngineChannel::leave_for_now() {
  watches_ = true;
  return std::nullopt;
}

/// What is left in doubt is glanced at once, after Board::kLeftFor. Then it is looked at as all
/// else is.
bool EngineChannel::is_for_me(const RequestName& request, const Since& since) {
  if (!is_shared_) return true;
  const auto now = std::chrono::steady_clock::now();
  auto& left_at = left_[request.slot].at;
  const bool was_left = left_at && now - *left_at >= Board::kLeftFor;
  const Choice choice = self_.board->choose(self_, request, since, was_left);
  if (choice == Choice::take) return true;
  if (choice == Choice::leave || was_left) return false;
  if (!left_at) left_at = now;
  doubts_ = true;
  return false;
}

void EngineChannel::forget_left(std::uint32_t slot, SlotState seen) {
  if (left_[slot].seen != seen) left_[slot] = {seen};
}

/// Whether this engine takes a request that nobody has, and what follows for the others' rooms.
bool EngineChannel::takes_turn(const RequestName& request, Help& help) {
  const auto next = self_.board->turn(self_.life, request);
  const bool takes =
      is_for_me(request, help.since) || (help.left != 0 && may_help(request, next, help));
  auto& rooms = help.since.rooms;
  if (next == self_.life) {
    help.since.left += takes ? 0 : 1;
    if (rooms && !takes) ++(*rooms)[self_.life.slot];
  } else if (rooms && takes) {
    --(*rooms)[self_.life.slot];
    if (next) ++(*rooms)[next->slot];
  }
  return takes;
}

/// Whether a request was left for a while by an engine that has less room, or has done nothing for
/// long. If not, that one is only late: others compete for its processor. But not for ever: it may
/// not have the channel.
bool EngineChannel::may_help(const RequestName& request, const std::optional<EngineLife>& next,
                             const Help& help) {
  if (!next || next == self_.life || self_.board->is_silent(*next) ||
      self_.board->load_of(*next).room < help.left)
    return true;
  return ++left_[request.slot].times > Board::kLooks;
}

/// So much only that the other engine does not take it back: then requests would go to and fro.
/// Where many engines share a processor, all of them are in long steps.
bool EngineChannel::may_take_from(EngineLife engine, const Help& help) const {
  const std::uint32_t tokens = help.since.tokens;
  EngineLoad theirs = self_.board->load_of(engine), mine = self_.board->load_of(self_.life);
  if (self_.board->is_stuck(engine) && mine.room != 0 && mine.queued < self_.tokens_per_step)
    return true;
  if (self_.board->is_silent(engine) && mine.room > self_.board->room_when_heard(engine))
    return true;
  theirs.queued -= std::min(theirs.queued, tokens);
  mine.queued += tokens;
  return self_.is_much_busier(theirs, mine);
}

/// An engine that died has finished a request, and may not have rung.
void EngineChannel::ring_for(std::uint32_t slot, SlotState ended_by_a_dead_engine) {
  const SlotState seen = ended_by_a_dead_engine;
  if (claim(slot, seen, SlotState::of(seen.number, Phase::finished, self_.life)))
    has_news_.store(true, std::memory_order_relaxed);
}

/// Whether the slot is this engine's now. If not, it has changed, and will be looked at again.
bool EngineChannel::claim(std::uint32_t slot, SlotState seen, SlotState mine) {
  KV_KILL_POINT("claim.begins");
  const std::lock_guard lock(takes_mutex_);
  const bool is_claimed = answer(slot).state.compare_exchange_strong(
      seen, mine, std::memory_order_acq_rel, std::memory_order_relaxed);
  KV_KILL_POINT("claim.done");
  if (is_claimed)
    ++takes_[slot];
  else
    watches_ = true;
  return is_claimed;
}

/// Changes the phase of a request that waits here. False if it is another engine's, or was.
bool EngineChannel::change(std::uint32_t slot, std::uint32_t take, SlotState& mine, Phase phase) {
  KV_KILL_POINT("phase.to_be_claimed");
  const std::lock_guard lock(takes_mutex_);
  SlotState expected = mine;
  if (takes_[slot] != take || !answer(slot).state.compare_exchange_strong(
                                  expected, mine.in(phase), std::memory_order_acq_rel))
    return false;
  KV_KILL_POINT("phase.claimed");
  mine = mine.in(phase);
  return true;
}

/// The client may rewrite its own at any time, so the copy is what is checked. What cannot be read
/// is zeros, which are no request. An engine's copy may be changing, too: then the request is
/// another engine's, and this one cannot claim it.
RequestBody EngineChannel::copy_body(const Found& found) const {
  if (!found.is_new()) return answer(found.slot).body;
  RequestBody body{};
  if (!requests_.read(body_offset(found.slot), std::as_writable_bytes(std::span(&body, 1))))
    return {};
  return body;
}

/// The request belongs to this engine from now on, and the slot's answer to the request. False if
/// another engine was faster.
bool EngineChannel::accept(const Found& found, const RequestBody& body) {
  AnswerSlot& a = answer(found.slot);
  const SlotState mine =
      SlotState::of(found.number, found.is_new() ? Phase::reading : Phase::taking, self_.life);
  if (!claim(found.slot, found.seen, mine)) return false;
  if (found.is_new()) {
    clear(a);
    a.body = body;
    a.taken.store(monotonic_ns(), std::memory_order_relaxed);
    KV_KILL_POINT("accept.body_copied");
  } else if (found.is_takeover) {
    count_takeover(a, found.seen.phase());
  }
  abort_seen_[found.slot] = false;
  a.engine.store(self_.number, std::memory_order_relaxed);
  KV_KILL_POINT("accept.engine_named");
  a.state.store(mine.in(Phase::taking), std::memory_order_release);
  KV_KILL_POINT("accept.stored");
  // The engine that died may have written tokens and not rung.
  if (found.is_takeover) has_news_.store(true, std::memory_order_relaxed);
  return true;
}

/// Reads the prompt of a request that was checked and accepted. An error = it has to be refused.
Expected<TakenRequest> EngineChannel::take(const Found& found, const RequestBody& body,
                                           const PromptLimits& limits) {
  AnswerSlot& a = answer(found.slot);
  if (auto few = check_takeovers(a); !few) return forward_error(few);
  const std::uint32_t journaled = a.tokens.load(std::memory_order_acquire);
  if (journaled > body.max_tokens || journaled > limits.tokens)
    return failure(Errc::bad_argument, "the channel's token log is damaged");
  TakenRequest request;
  request.held = std::make_shared<HeldMemory>(shared_from_this(), memory_for(body, limits));
  request.slot = found.slot;
  request.number = found.number;
  request.is_new = found.is_new();
  request.take = takes_[found.slot];  // only this thread changes it
  request.params = params_of(body);
  request.prompt_kind = body.prompt_kind;
  request.log = body.log;
  request.prompt_log = body.prompt_log;
  request.text_room = body.text;
  if (auto read = read_prompt(body, request); !read) return forward_error(read);
  if (auto read = read_rules(body, request.params.rules); !read) return forward_error(read);
  read_journal(body, journaled, request);
  request.earlier_admission = earlier_admission(found.slot);
  request.times = {a.taken.load(std::memory_order_relaxed),
                   a.admitted.load(std::memory_order_relaxed),
                   a.first_token.load(std::memory_order_relaxed)};
  KV_KILL_POINT("accept.read");
  a.state.store(SlotState::of(found.number, Phase::waiting, self_.life), std::memory_order_release);
  KV_KILL_POINT("accept.waiting");
  return request;
}

Expected<void> EngineChannel::read_prompt(const RequestBody& body, TakenRequest& request) const {
  if (body.prompt_kind == PromptKind::text) {
    request.text.resize(body.prompt.bytes);
    return requests_.read(body.prompt.offset, std::as_writable_bytes(std::span(request.text)));
  }
  if (body.prompt_kind == PromptKind::embeddings) {
    request.rows = body.prompt;
    return {};
  }
  request.tokens.resize(body.prompt.bytes / sizeof(TokenId));
  return requests_.read(body.prompt.offset, std::as_writable_bytes(std::span(request.tokens)));
}

Expected<std::vector<float>> EngineChannel::read_rows(const ChannelRange& rows) const {
  std::vector<float> values(rows.bytes / sizeof(float));
  if (auto read = requests_.read(rows.offset, std::as_writable_bytes(std::span(values))); !read)
    return forward_error(read);
  return values;
}

/// The allowed tokens last: nothing but the model's vocabulary can be against them.
Expected<void> EngineChannel::read_rules(const RequestBody& body, TokenRules& rules) const {
  const std::size_t allowed = body.rule_counts.allowed * sizeof(TokenId);
  std::vector<std::byte> lists(body.rule_lists.bytes - allowed);
  if (auto read = requests_.read(body.rule_lists.offset, lists); !read) return read;
  if (auto read = read_short_lists(lists, body.rule_counts, rules); !read) return read;
  if (auto valid = kvhive::check(rules); !valid) return valid;
  rules.allowed_token_ids.resize(body.rule_counts.allowed);
  return requests_.read(body.rule_lists.offset + lists.size(),
                        std::as_writable_bytes(std::span(rules.allowed_token_ids)));
}

void EngineChannel::read_journal(const RequestBody& body, std::uint32_t tokens,
                                 TakenRequest& request) const {
  request.journal.reserve(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i) {
    LogRecord record;
    std::memcpy(&record, answers_.data() + body.log.offset + i * record_bytes(body.logprobs),
                sizeof record);
    request.journal.push_back(record.token);
  }
}

/// What the first admission wrote; nothing if the request was never admitted. (Before the first
/// admission `prompt_tokens` is 0.)
std::optional<RequestStats> EngineChannel::earlier_admission(std::uint32_t index) const {
  const AnswerSlot& s = answer(index);
  const RequestStats stats{s.prompt_tokens.load(std::memory_order_relaxed),
                           s.cached_tokens.load(std::memory_order_relaxed),
                           s.preemptions.load(std::memory_order_relaxed)};
  return stats.prompt_tokens != 0 ? std::optional(stats) : std::nullopt;
}

std::vector<std::uint32_t> EngineChannel::take_aborts(std::size_t most) {
  std::vector<std::uint32_t> aborted;
  std::uint32_t passed = look_at_marks() ? 0 : kChannelSlots;
  for (; passed < kChannelSlots && aborted.size() < most; ++passed) {
    const SlotState state = answer(passed).state.load(std::memory_order_relaxed);
    const bool is_wanted = state.phase() != Phase::finished && state.owner() == self_.life &&
                           marks_[passed].aborted == state.number;
    if (is_wanted && !std::exchange(abort_seen_[passed], true)) aborted.push_back(passed);
  }
  has_more_aborts_ = passed < kChannelSlots;
  return aborted;
}

Expected<void> EngineChannel::check(const Found& found, const RequestBody& body,
                                    const PromptLimits& limits) const {
  if (body.number != found.number)
    return failure(Errc::bad_argument,
                   "the request was changed while the engine read it; submit it once");
  return check_request(body, limits, {requests_.size(), answers_.size()});
}

std::size_t TakenRequest::most_scored() const {
  return params.prompt_logprobs ? prompt_log.bytes / record_bytes(*params.prompt_logprobs)
                                : ~std::size_t{0};
}

void EngineChannel::finish(AnswerSlot& slot, FinishReason reason, const Error& error,
                           std::size_t text_bytes) {
  KV_KILL_POINT("finish.begins");
  slot.text_bytes = static_cast<std::uint32_t>(text_bytes);
  KV_KILL_POINT("finish.text_measured");
  slot.reason = reason;
  slot.error = static_cast<std::uint32_t>(error.code);
  slot.retry_after_ms = static_cast<std::uint32_t>(error.retry_after.count());
  const std::size_t length = std::min(error.text.size(), kErrorBytes - 1);
  std::memcpy(slot.error_text.data(), error.text.data(), length);
  slot.error_text[length] = '\0';
  KV_KILL_POINT("finish.written");
  const SlotState mine = slot.state.load(std::memory_order_relaxed);
  slot.state.store(mine.in(Phase::finished), std::memory_order_release);
  KV_KILL_POINT("finish.stored");
  has_news_.store(true, std::memory_order_relaxed);
}

void EngineChannel::ring() {
  if (!has_news_.exchange(false, std::memory_order_acq_rel)) return;
  KV_KILL_POINT("ring.before_client");
  client_->ring();
  KV_KILL_POINT("ring.client_rung");
}

/// Writes one request's results.
class EngineChannel::Sink : public OutputSink {
 public:
  Sink(std::shared_ptr<EngineChannel> channel, const TakenRequest& request)
      : channel_(std::move(channel)),
        held_(request.held),
        index_(request.slot),
        take_(request.take),
        slot_(channel_->answer(request.slot)),
        log_(request.log),
        prompt_log_(request.prompt_log),
        text_(request.text_room),
        logprobs_(request.params.logprobs),
        prompt_logprobs_(request.params.prompt_logprobs.value_or(0)),
        record_bytes_(record_bytes(logprobs_)),
        journaled_(request.journal.size()),
        state_(SlotState::of(request.number, Phase::waiting, channel_->self_.life)) {}

  void wait() override { store(Phase::waiting); }
  bool read() override { return claim(Phase::taking); }
  bool start() override { return claim(Phase::running); }
  void preempted() override { store(Phase::preempted); }

  void note(const RequestTimes& times) override {
    slot_.admitted.store(times.admitted, std::memory_order_relaxed);
    slot_.first_token.store(times.first_token, std::memory_order_relaxed);
  }

  void admitted(const RequestStats& stats) override {
    write_stats(stats);
    channel_->has_news_.store(true, std::memory_order_relaxed);
  }

  void prompt(std::size_t first, std::span<const PromptToken> tokens) override {
    const std::size_t bytes = record_bytes(prompt_logprobs_);
    for (std::size_t i = first; i < first + tokens.size(); ++i) {
      if ((i + 1) * bytes > prompt_log_.bytes) return;
      const PromptToken& token = tokens[i - first];
      const auto top =
          std::span(token.top).first(std::min<std::size_t>(token.top.size(), prompt_logprobs_));
      const PromptRecord record{token.token, token.logprob, token.rank,
                                static_cast<std::uint32_t>(top.size())};
      write(prompt_log_.offset + i * bytes, record, top);
    }
    KV_KILL_POINT("prompt.scored");
  }

  void token(const GeneratedToken& token, std::string_view text) override {
    const std::size_t fitting =
        std::min(text.size(), text_.bytes - std::min<std::size_t>(text_.bytes, text_end_));
    std::memcpy(channel_->answers_.data() + text_.offset + text_end_, text.data(), fitting);
    KV_KILL_POINT("token.text_written");
    text_end_ += static_cast<std::uint32_t>(fitting);
    if ((tokens_ + 1) * record_bytes_ > log_.bytes) return;
    if (++tokens_ <= journaled_)
      return;  // an engine that died has written this record, and the client may have read it
    write_record(token);
    KV_KILL_POINT("token.recorded");
    slot_.tokens.store(tokens_, std::memory_order_release);
    KV_KILL_POINT("token.stored");
    channel_->has_news_.store(true, std::memory_order_relaxed);
  }

  void room(const RoomStatus& room) override {
    slot_.room = room.status;
    KV_KILL_POINT("room.in_part");
    slot_.needed_blocks = room.needed_blocks;
    slot_.available_blocks = room.available_blocks;
  }

  bool finished(FinishReason reason, const Error& error, const RequestStats& stats,
                std::size_t text_bytes) override {
    if (state_.phase() == Phase::waiting && !claim(Phase::taking)) return false;
    if (reason == FinishReason::error && state_.phase() == Phase::taking)
      ++channel_->late_refusals_;
    if (error.code == Errc::overloaded)
      channel_->was_overloaded_.store(true, std::memory_order_relaxed);
    write_stats(stats);
    channel_->finish(slot_, reason, error, std::min<std::size_t>(text_bytes, text_end_));
    return true;
  }

  void flush() override { channel_->ring(); }

 private:
  void store(Phase phase) {
    state_ = state_.in(phase);
    KV_KILL_POINT("phase.begins");
    slot_.state.store(state_, std::memory_order_release);
    KV_KILL_POINT("phase.stored");
  }

  /// If another engine has the request, it may be stopped before it runs it: then this engine must
  /// see it again.
  bool claim(Phase phase) {
    if (channel_->change(index_, take_, state_, phase)) return true;
    channel_->tell_change();
    return false;
  }

  void write_record(const GeneratedToken& token) {
    const auto top = std::span(token.top).first(std::min<std::size_t>(token.top.size(), logprobs_));
    const LogRecord record{token.token, token.logprob, text_end_,
                           static_cast<std::uint32_t>(top.size())};
    write(log_.offset + (tokens_ - 1) * record_bytes_, record, top);
  }

  template <class Record>
  void write(std::size_t offset, const Record& record, std::span<const Sampled> top) {
    std::byte* place = channel_->answers_.data() + offset;
    std::memcpy(place, &record, sizeof record);
    KV_KILL_POINT("token.recorded_in_part");
    for (std::size_t i = 0; i < top.size(); ++i) {
      const TopEntry entry{top[i].token, top[i].logprob};
      std::memcpy(place + sizeof record + i * sizeof entry, &entry, sizeof entry);
    }
  }

  void write_stats(const RequestStats& stats) {
    slot_.prompt_tokens.store(stats.prompt_tokens, std::memory_order_relaxed);
    KV_KILL_POINT("stats.in_part");
    slot_.cached_tokens.store(stats.cached_tokens, std::memory_order_relaxed);
    slot_.preemptions.store(stats.preemptions, std::memory_order_release);
    KV_KILL_POINT("stats.stored");
  }

  std::shared_ptr<EngineChannel> channel_;
  std::shared_ptr<const HeldMemory> held_;
  const std::uint32_t index_, take_;
  AnswerSlot& slot_;
  const ChannelRange log_, prompt_log_, text_;
  const std::uint32_t logprobs_, prompt_logprobs_;
  const std::size_t record_bytes_;
  const std::size_t journaled_;
  SlotState state_;  ///< as this engine has stored it last
  std::uint32_t tokens_ = 0;
  std::uint32_t text_end_ = 0;
};

std::unique_ptr<OutputSink> EngineChannel::sink(const TakenRequest& request) {
  return std::make_unique<Sink>(shared_from_this(), request);
}

}  // namespace kvhive
