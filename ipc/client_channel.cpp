#include "ipc/client_channel.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "base/byte_size.hpp"
#include "base/check.hpp"
#include "base/kill_point.hpp"
#include "ipc/channel_memory.hpp"
#include "ipc/doorbell.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kAlignment = 16;

std::size_t text_room(const ChannelRequest& request) {
  if (request.most_text_bytes != 0) return request.most_text_bytes;
  return std::max<std::size_t>(4096, std::size_t{request.params.max_tokens} * 16);
}

std::size_t prompt_bytes(const ChannelRequest& request) {
  return request.prompt_tokens.empty() ? request.prompt.size()
                                       : request.prompt_tokens.size() * sizeof(TokenId);
}

std::size_t log_bytes(const ChannelRequest& request) {
  return request.params.max_tokens * record_bytes(request.params.logprobs);
}

/// A seed for a request whose caller chose none. It is written into the slot like a chosen seed, so
/// that an engine that takes the request over samples the same tokens.
std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  KV_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

/// Checks that the request's values are in range and fit into a slot.
Expected<void> check(const ChannelRequest& request) {
  const GenerationParams& params = request.params;
  const auto bad = [](const std::string& text) { return failure(Errc::bad_argument, text); };
  if (request.prompt.empty() && request.prompt_tokens.empty())
    return bad("the prompt is empty; give at least one token");
  if (params.max_tokens == 0) return bad("max_tokens is 0; ask for at least 1");
  if (params.logprobs > kMostLogprobs)
    return bad("logprobs is " + std::to_string(params.logprobs) + "; at most " +
               std::to_string(kMostLogprobs));
  if (params.stop.size() > kMostStopStrings)
    return bad(std::to_string(params.stop.size()) + " stop strings; at most " +
               std::to_string(kMostStopStrings));
  for (const std::string& stop : params.stop)
    if (stop.empty() || stop.size() > kStopBytes)
      return bad("stop string '" + stop + "' must have 1.." + std::to_string(kStopBytes) +
                 " bytes");
  if (params.stop_token_ids.size() > kMostStopTokens)
    return bad(std::to_string(params.stop_token_ids.size()) + " stop tokens; at most " +
               std::to_string(kMostStopTokens));
  if (auto valid = checked(params.sampling); !valid) return forward_error(valid);
  return {};
}

}  // namespace

std::size_t heap_bytes(const ChannelRequest& request) {
  return prompt_bytes(request) + log_bytes(request) + text_room(request);
}

Expected<ClientChannel> ClientChannel::open(const UniqueFd& memory, std::size_t bytes,
                                            UniqueFd engine_bell) {
  auto map = MappedMemory::map(memory.get(), bytes, Access::read_write, "channel");
  if (!map) return forward_error(map);
  KV_CHECK(bytes > heap_offset(), bytes);
  ChannelHeader header;
  std::memcpy(&header, map->data(), sizeof header);
  if (auto valid = check_channel_header(header, bytes); !valid) return forward_error(valid);
  return ClientChannel(std::move(*map), std::move(engine_bell));
}

ClientChannel::ClientChannel(MappedMemory memory, UniqueFd engine_bell)
    : memory_(std::move(memory)), engine_bell_(std::move(engine_bell)) {
  free_.emplace(heap_offset(), memory_.size() - heap_offset());
}

RequestSlot& ClientChannel::slot(std::uint32_t index) const {
  return reinterpret_cast<RequestSlot*>(memory_.data() + slots_offset())[index];
}

Expected<std::uint32_t> ClientChannel::submit(const ChannelRequest& request) {
  if (auto valid = check(request); !valid) return forward_error(valid);
  std::uint32_t index = 0;
  while (index < kChannelSlots && open_.count(index) != 0) ++index;
  if (index == kChannelSlots)
    return failure(Errc::pool_exhausted,
                   "all " + std::to_string(kChannelSlots) + " requests of this channel are in use");
  auto open = reserve(request);
  if (!open) return forward_error(open);

  RequestSlot& s = slot(index);
  KV_KILL_POINT("submit.begins");
  fill(s.body, request, *open);
  KV_KILL_POINT("submit.body_filled");
  s.wants_abort.store(0, std::memory_order_relaxed);
  s.tokens.store(0, std::memory_order_relaxed);
  KV_KILL_POINT("submit.log_emptied");
  s.reason = FinishReason::none;
  s.prompt_tokens.store(0, std::memory_order_relaxed);
  s.cached_tokens.store(0, std::memory_order_relaxed);
  s.preemptions.store(0, std::memory_order_relaxed);
  KV_KILL_POINT("submit.slot_filled");
  s.state.store(SlotState::submitted, std::memory_order_release);
  KV_KILL_POINT("submit.stored");
  open_.emplace(index, *open);
  wake_engine();
  return index;
}

Expected<ClientChannel::Open> ClientChannel::reserve(const ChannelRequest& request) {
  const std::size_t prompt = prompt_bytes(request);
  Open open;
  open.logprobs = request.params.logprobs;
  for (const auto& [range, bytes] :
       {std::pair{&open.prompt, prompt}, std::pair{&open.log, log_bytes(request)},
        std::pair{&open.text, text_room(request)}}) {
    const auto taken = take(bytes);
    if (!taken) {
      give_back(open);
      return failure(
          Errc::pool_exhausted,
          "the channel has no room for a request of " + format_bytes(heap_bytes(request)) +
              "; connect with a larger channel (channel_bytes) or ask for fewer max_tokens");
    }
    *range = *taken;
  }
  open.prompt.bytes = prompt;
  return open;
}

void ClientChannel::fill(RequestBody& body, const ChannelRequest& request, const Open& open) {
  const GenerationParams& params = request.params;
  body = {};
  body.prompt_kind = request.prompt_tokens.empty() ? PromptKind::text : PromptKind::tokens;
  const void* prompt = request.prompt_tokens.empty()
                           ? static_cast<const void*>(request.prompt.data())
                           : static_cast<const void*>(request.prompt_tokens.data());
  std::memcpy(memory_.data() + open.prompt.offset, prompt, open.prompt.bytes);
  KV_KILL_POINT("submit.prompt_copied");
  body.prompt = open.prompt;
  body.log = open.log;
  body.text = open.text;
  body.max_tokens = params.max_tokens;
  body.logprobs = params.logprobs;
  body.ignore_eos = params.ignore_eos;
  body.priority = params.priority;
  body.temperature = params.sampling.temperature;
  body.top_p = params.sampling.top_p;
  body.min_p = params.sampling.min_p;
  body.top_k = params.sampling.top_k;
  body.has_seed = params.has_seed;
  body.seed = params.has_seed ? params.sampling.seed : random_seed();
  body.stop_count = static_cast<std::uint32_t>(params.stop.size());
  for (std::size_t i = 0; i < params.stop.size(); ++i) {
    body.stop_bytes[i] = static_cast<std::uint32_t>(params.stop[i].size());
    std::memcpy(body.stop[i].data(), params.stop[i].data(), params.stop[i].size());
  }
  body.stop_token_count = static_cast<std::uint32_t>(params.stop_token_ids.size());
  std::copy(params.stop_token_ids.begin(), params.stop_token_ids.end(), body.stop_tokens.begin());
}

ChannelProgress ClientChannel::read(std::uint32_t index) {
  const auto found = open_.find(index);
  KV_CHECK(found != open_.end(), index);
  Open& open = found->second;
  RequestSlot& s = slot(index);
  ChannelProgress progress;
  const bool is_finished = s.state.load(std::memory_order_acquire) == SlotState::finished;
  const std::uint32_t tokens = s.tokens.load(std::memory_order_acquire);
  std::uint32_t text_end = open.text_read;
  for (; open.tokens_read < tokens; ++open.tokens_read) {
    const std::byte* place =
        memory_.data() + open.log.offset + open.tokens_read * record_bytes(open.logprobs);
    LogRecord record;
    std::memcpy(&record, place, sizeof record);
    GeneratedToken token{record.token, record.logprob, {}};
    for (std::uint32_t i = 0; i < std::min(record.top_count, open.logprobs); ++i) {
      TopEntry entry;
      std::memcpy(&entry, place + sizeof record + i * sizeof entry, sizeof entry);
      token.top.push_back({entry.token, entry.logprob});
    }
    progress.tokens.push_back(std::move(token));
    text_end = record.text_end;
  }
  if (is_finished) text_end = std::max(text_end, s.text_bytes);
  if (text_end > open.text_read)
    progress.text.assign(
        reinterpret_cast<const char*>(memory_.data() + open.text.offset + open.text_read),
        text_end - open.text_read);
  open.text_read = text_end;
  progress.stats = {s.prompt_tokens.load(std::memory_order_relaxed),
                    s.cached_tokens.load(std::memory_order_relaxed),
                    s.preemptions.load(std::memory_order_relaxed)};
  progress.engine = engine_of(s);
  if (!is_finished) return progress;

  progress.reason = s.reason;
  progress.text_bytes = s.text_bytes;
  progress.error = {Errc(s.error), s.error_text.data()};
  KV_KILL_POINT("read.end");
  s.state.store(SlotState::vacant, std::memory_order_release);
  KV_KILL_POINT("read.slot_vacated");
  give_back(open);
  open_.erase(found);
  return progress;
}

/// The engine that works on the request, or has finished it; kNoEngine if none does. A slot stays
/// `accepted` when its engine dies, until another engine takes it over. So an accepted slot's
/// engine counts only if it is also the engine that the keeper has written into the channel's
/// header.
std::uint32_t ClientChannel::engine_of(const RequestSlot& slot) const {
  const SlotState state = slot.state.load(std::memory_order_acquire);
  const std::uint32_t engine = slot.engine.load(std::memory_order_relaxed);
  if (state == SlotState::finished) return engine;
  return state == SlotState::accepted && serving_engine() == engine ? engine : kNoEngine;
}

std::uint32_t ClientChannel::serving_engine() const {
  auto* header = reinterpret_cast<ChannelHeader*>(memory_.data());
  return std::atomic_ref(header->engine).load(std::memory_order_relaxed);
}

void ClientChannel::abort(std::uint32_t index) {
  KV_KILL_POINT("abort.begins");
  slot(index).wants_abort.store(1, std::memory_order_release);
  KV_KILL_POINT("abort.stored");
  wake_engine();
}

void ClientChannel::wake_engine() const {
  ring_engine(engine_bell_.get());
  KV_KILL_POINT("ring.engine_rung");
}

// -- the heap: first fit; a returned range is joined with its free neighbours ---------------------

std::optional<ChannelRange> ClientChannel::take(std::size_t bytes) {
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < rounded) continue;
    const auto [offset, size] = *range;
    free_.erase(range);
    if (size > rounded) free_.emplace(offset + rounded, size - rounded);
    return ChannelRange{offset, rounded};
  }
  return std::nullopt;
}

void ClientChannel::give_back(const Open& open) {
  for (const ChannelRange& range : {open.prompt, open.log, open.text})
    if (range.bytes != 0) put(range);
}

void ClientChannel::put(const ChannelRange& range) {
  const std::uint64_t bytes = (range.bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto [here, inserted] = free_.emplace(range.offset, bytes);
  KV_CHECK(inserted, range.offset);
  if (const auto next = std::next(here);
      next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  const auto before = std::prev(here);
  if (before->first + before->second == here->first) {
    before->second += here->second;
    free_.erase(here);
  }
}

}  // namespace kvhive
