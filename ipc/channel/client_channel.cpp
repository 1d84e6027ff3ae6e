#include "ipc/channel/client_channel.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "base/byte_size.hpp"
#include "base/check.hpp"
#include "base/kill_point.hpp"
#include "base/round_up.hpp"
#include "ipc/channel/channel_memory.hpp"
#include "ipc/channel/doorbell.hpp"

namespace kvhive {
namespace {

/// The requests' file gets its memory in such pieces, as prompts need it.
constexpr std::size_t kPiece = std::size_t{64} << 10;

std::size_t text_room(const ChannelRequest& request) {
  if (request.most_text_bytes != 0) return request.most_text_bytes;
  return std::max<std::size_t>(4096, std::size_t{request.params.max_tokens} * 16);
}

PromptKind kind_of(const ChannelRequest& request) {
  if (!request.prompt_embeds.empty()) return PromptKind::embeddings;
  return request.prompt_tokens.empty() ? PromptKind::text : PromptKind::tokens;
}

std::span<const std::byte> prompt_of(const ChannelRequest& request) {
  switch (kind_of(request)) {
    case PromptKind::embeddings: return std::as_bytes(std::span(request.prompt_embeds));
    case PromptKind::tokens: return std::as_bytes(std::span(request.prompt_tokens));
    case PromptKind::text: break;
  }
  return std::as_bytes(std::span(request.prompt));
}

std::size_t prompt_bytes(const ChannelRequest& request) { return prompt_of(request).size(); }

std::size_t log_bytes(const ChannelRequest& request) {
  return request.params.max_tokens * record_bytes(request.params.logprobs);
}

/// A text rarely has more tokens than bytes, and those that the tokeniser adds. One that does is
/// refused.
std::size_t prompt_log_bytes(const ChannelRequest& request) {
  constexpr std::size_t kAdded = 16;
  if (!request.params.prompt_logprobs) return 0;
  const std::size_t tokens =
      request.prompt_tokens.empty() ? request.prompt.size() + kAdded : request.prompt_tokens.size();
  return tokens * record_bytes(*request.params.prompt_logprobs);
}

/// A seed for a request whose caller chose none. It is written into the slot like a chosen seed, so
/// that an engine that takes the request over samples the same tokens.
std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  KV_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

Expected<void> check_embeddings(const ChannelRequest& request) {
  const std::size_t values = request.prompt_embeds.size(), width = request.embedding_width;
  if (values == 0) return {};
  if (!request.prompt.empty() || !request.prompt_tokens.empty())
    return failure(Errc::bad_argument,
                   "prompt_embeds stands instead of text and tokens; give one of them");
  if (width == 0 || values % width != 0)
    return failure(Errc::bad_argument, "prompt_embeds has " + std::to_string(values) +
                                           " values, no whole rows of " + std::to_string(width) +
                                           "; a row has the model's hidden_size");
  if (request.params.prompt_logprobs)
    return failure(Errc::bad_argument,
                   "prompt_logprobs of prompt_embeds: there are no tokens to be scored; leave one "
                   "of them out");
  return {};
}

/// Checks that the request's values are in range and fit into a slot.
Expected<void> check(const ChannelRequest& request) {
  const GenerationParams& params = request.params;
  const auto bad = [](const std::string& text) { return failure(Errc::bad_argument, text); };
  if (prompt_of(request).empty()) return bad("the prompt is empty; give at least one token");
  if (auto valid = check_embeddings(request); !valid) return valid;
  if (params.max_tokens == 0) return bad("max_tokens is 0; ask for at least 1");
  if (params.logprobs > kMostLogprobs)
    return bad("logprobs is " + std::to_string(params.logprobs) + "; at most " +
               std::to_string(kMostLogprobs));
  if (params.prompt_logprobs.value_or(0) > kMostLogprobs)
    return bad("prompt_logprobs is " + std::to_string(*params.prompt_logprobs) + "; at most " +
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
  if (params.cache_salt.size() > kSaltBytes)
    return bad("cache_salt has " + std::to_string(params.cache_salt.size()) + " bytes; at most " +
               std::to_string(kSaltBytes) + ", or give a digest of it");
  if (params.adapter.size() > kAdapterBytes)
    return bad("adapter has " + std::to_string(params.adapter.size()) +
               " bytes; names have at most " + std::to_string(kAdapterBytes));
  if (auto valid = checked(params.sampling); !valid) return forward_error(valid);
  if (params.rules.min_tokens > params.max_tokens)
    return bad("min_tokens is " + std::to_string(params.rules.min_tokens) +
               "; at most max_tokens, " + std::to_string(params.max_tokens));
  return check(params.rules);
}

}  // namespace

std::size_t least_channel_bytes(const ChannelRequest& request) {
  constexpr std::size_t kRounding = 64;  // of four ranges at most
  return kRounding +
         std::max(prompts_offset() + prompt_bytes(request) + list_bytes(request.params.rules),
                  answers_offset() + log_bytes(request) + prompt_log_bytes(request) +
                      text_room(request));
}

Expected<ClientChannel> ClientChannel::open(UniqueFd requests, const UniqueFd& answers,
                                            std::size_t bytes, UniqueFd engine_bell) {
  KV_CHECK(bytes > std::max(prompts_offset(), answers_offset()), bytes);
  auto read_only = MappedMemory::map(answers.get(), bytes, Access::read_only, kAnswersName);
  if (!read_only) return forward_error(read_only);
  ChannelHeader header;
  std::memcpy(&header, read_only->data(), sizeof header);
  if (auto valid = check_channel_header(header, bytes); !valid) return forward_error(valid);
  auto map = MappedMemory::map(requests.get(), bytes, Access::read_write, kRequestsName);
  if (!map) return forward_error(map);
  if (auto sealed = seal_against_new_writers(requests.get(), kRequestsName); !sealed)
    return forward_error(sealed);
  ClientChannel channel(std::move(requests), std::move(*map), std::move(*read_only),
                        std::move(engine_bell));
  if (auto allocated = channel.allocate(prompts_offset()); !allocated)
    return forward_error(allocated);
  return channel;
}

ClientChannel::ClientChannel(UniqueFd file, MappedMemory requests, MappedMemory answers,
                             UniqueFd engine_bell)
    : file_(std::move(file)),
      requests_(std::move(requests)),
      answers_(std::move(answers)),
      engine_bell_(std::move(engine_bell)),
      prompts_(prompts_offset(), requests_.size()),
      results_(answers_offset(), answers_.size()) {}

/// The first bytes of the requests get memory, up to `end`. If there is none, that is an error here
/// and not a SIGBUS later.
Expected<void> ClientChannel::allocate(std::size_t end) {
  if (end <= allocated_) return {};
  const std::size_t rounded = std::min(round_up(end, kPiece), requests_.size());
  if (auto allocated = allocate_memory(file_, allocated_, rounded, rounded, kRequestsName);
      !allocated)
    return allocated;
  allocated_ = rounded;
  return {};
}

RequestMark& ClientChannel::mark(std::uint32_t slot) const {
  return reinterpret_cast<RequestMark*>(requests_.data())[slot];
}

const AnswerSlot& ClientChannel::answer(std::uint32_t slot) const {
  return reinterpret_cast<const AnswerSlot*>(answers_.data() + slots_offset())[slot];
}

Expected<std::uint32_t> ClientChannel::submit(const ChannelRequest& request) {
  if (auto valid = check(request); !valid) return forward_error(valid);
  std::uint32_t slot = 0;
  while (slot < kChannelSlots && open_.count(slot) != 0) ++slot;
  if (slot == kChannelSlots)
    return failure(Errc::pool_exhausted,
                   "all " + std::to_string(kChannelSlots) + " requests of this channel are in use");
  auto open = reserve(request);
  if (!open) return forward_error(open);

  if (++numbers_[slot] == 0) numbers_[slot] = 1;  // 0 = none yet
  open->number = numbers_[slot];
  KV_KILL_POINT("submit.begins");
  fill(slot, request, *open);
  KV_KILL_POINT("submit.filled");
  // Numbers repeat after 2^32 requests: an abort must not be of another round.
  std::atomic_ref(mark(slot).aborted).store(0, std::memory_order_relaxed);
  std::atomic_ref(mark(slot).submitted).store(open->number, std::memory_order_release);
  KV_KILL_POINT("submit.stored");
  open_.emplace(slot, *open);
  wake_engine();
  return slot;
}

Expected<ClientChannel::Open> ClientChannel::reserve(const ChannelRequest& request) {
  struct Part {
    RangeHeap& heap;
    ChannelRange& range;
    std::size_t bytes;
  };
  Open open;
  open.logprobs = request.params.logprobs;
  open.prompt_logprobs = request.params.prompt_logprobs.value_or(0);
  const Part parts[] = {{prompts_, open.prompt, prompt_bytes(request)},
                        {prompts_, open.rule_lists, list_bytes(request.params.rules)},
                        {results_, open.log, log_bytes(request)},
                        {results_, open.prompt_log, prompt_log_bytes(request)},
                        {results_, open.text, text_room(request)}};
  for (const Part& part : parts) {
    if (part.bytes == 0) continue;
    const auto taken = part.heap.take(part.bytes);
    if (!taken) {
      give_back(open);
      return failure(Errc::pool_exhausted,
                     "the channel has no room for a request of " +
                         format_bytes(parts[0].bytes + parts[1].bytes) + " and an answer of " +
                         format_bytes(parts[2].bytes + parts[3].bytes + parts[4].bytes) +
                         "; connect with a larger channel (channel_bytes), or ask for less: "
                         "max_tokens, prompt_logprobs");
    }
    part.range = *taken;
  }
  const std::size_t end = std::max(open.prompt.offset + open.prompt.bytes,
                                   open.rule_lists.offset + open.rule_lists.bytes);
  if (auto allocated = allocate(end); !allocated) {
    give_back(open);
    return forward_error(allocated);
  }
  open.prompt.bytes = prompt_bytes(request);
  open.rule_lists.bytes = list_bytes(request.params.rules);
  return open;
}

void ClientChannel::give_back(const Open& open) {
  for (const ChannelRange& range : {open.prompt, open.rule_lists})
    if (range.bytes != 0) prompts_.put(range);
  for (const ChannelRange& range : {open.log, open.prompt_log, open.text})
    if (range.bytes != 0) results_.put(range);
}

void ClientChannel::fill(std::uint32_t slot, const ChannelRequest& request, const Open& open) {
  const GenerationParams& params = request.params;
  auto& body = *reinterpret_cast<RequestBody*>(requests_.data() + body_offset(slot));
  body = {};
  body.number = open.number;
  body.prompt_kind = kind_of(request);
  body.embedding_width = request.embedding_width;
  std::memcpy(requests_.data() + open.prompt.offset, prompt_of(request).data(), open.prompt.bytes);
  KV_KILL_POINT("submit.prompt_copied");
  body.prompt = open.prompt;
  body.log = open.log;
  body.prompt_log = open.prompt_log;
  body.text = open.text;
  body.max_tokens = params.max_tokens;
  body.logprobs = params.logprobs;
  body.prompt_logprobs = open.prompt_logprobs;
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
  body.presence_penalty = params.rules.presence_penalty;
  body.frequency_penalty = params.rules.frequency_penalty;
  body.repetition_penalty = params.rules.repetition_penalty;
  body.min_tokens = params.rules.min_tokens;
  body.include_stop = params.include_stop;
  body.only_asks = params.only_asks;
  body.will_be_forked = params.will_be_forked;
  body.rule_counts = counts_of(params.rules);
  body.rule_lists = open.rule_lists;
  write_lists(params.rules, {requests_.data() + open.rule_lists.offset, open.rule_lists.bytes});
  body.salt_bytes = static_cast<std::uint32_t>(params.cache_salt.size());
  std::memcpy(body.salt.data(), params.cache_salt.data(), params.cache_salt.size());
  body.adapter_bytes = static_cast<std::uint32_t>(params.adapter.size());
  std::memcpy(body.adapter.data(), params.adapter.data(), params.adapter.size());
  body.stop_token_count = static_cast<std::uint32_t>(params.stop_token_ids.size());
  std::copy(params.stop_token_ids.begin(), params.stop_token_ids.end(), body.stop_tokens.begin());
}

ChannelProgress ClientChannel::read(std::uint32_t slot) {
  const auto found = open_.find(slot);
  KV_CHECK(found != open_.end(), slot);
  Open& open = found->second;
  const AnswerSlot& a = answer(slot);
  ChannelProgress progress;
  const SlotState state = a.state.load(std::memory_order_acquire);
  if (!state.has_answer_to(open.number)) return progress;
  const bool is_finished = state.phase() == Phase::finished;
  const bool has_token = open.tokens_read != 0;
  read_tokens(open, a.tokens.load(std::memory_order_acquire), progress);
  if (!has_token && open.tokens_read != 0)
    progress.prompt = read_prompt(open, a.prompt_tokens.load(std::memory_order_relaxed));
  if (is_finished) read_text(open, a.text_bytes, progress);
  progress.stats = {a.prompt_tokens.load(std::memory_order_relaxed),
                    a.cached_tokens.load(std::memory_order_relaxed),
                    a.preemptions.load(std::memory_order_relaxed)};
  // A slot names its engine when that has died, too, until another engine takes the request over.
  // So the engine counts only if the keeper says that it serves the channel.
  if (is_finished || is_served_by(state.owner()))
    progress.engine = a.engine.load(std::memory_order_relaxed);
  if (!is_finished) return progress;

  progress.reason = a.reason;
  progress.text_bytes = a.text_bytes;
  if (a.reason == FinishReason::room)
    progress.room = {a.room, a.needed_blocks, a.available_blocks, progress.stats.cached_tokens};
  progress.error = {Errc(a.error), a.error_text.data(),
                    std::chrono::milliseconds(a.retry_after_ms)};
  give_back(open);
  open_.erase(found);
  return progress;
}

/// What is new of the log's first `tokens` records, and of the text up to the last of them.
void ClientChannel::read_tokens(Open& open, std::uint32_t tokens, ChannelProgress& progress) const {
  std::uint32_t text_end = open.text_read;
  for (; open.tokens_read < tokens; ++open.tokens_read) {
    const std::size_t place = open.log.offset + open.tokens_read * record_bytes(open.logprobs);
    LogRecord record;
    std::memcpy(&record, answers_.data() + place, sizeof record);
    progress.tokens.push_back(
        {record.token, record.logprob,
         read_top(place + sizeof record, std::min(record.top_count, open.logprobs))});
    text_end = record.text_end;
  }
  read_text(open, text_end, progress);
}

std::vector<PromptToken> ClientChannel::read_prompt(const Open& open, std::size_t tokens) const {
  const std::size_t bytes = record_bytes(open.prompt_logprobs);
  std::vector<PromptToken> prompt(std::min(tokens, open.prompt_log.bytes / bytes));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::size_t place = open.prompt_log.offset + i * bytes;
    PromptRecord record;
    std::memcpy(&record, answers_.data() + place, sizeof record);
    prompt[i] = {record.token, record.logprob, record.rank,
                 read_top(place + sizeof record, std::min(record.top_count, open.prompt_logprobs))};
  }
  return prompt;
}

std::vector<Sampled> ClientChannel::read_top(std::size_t offset, std::uint32_t count) const {
  std::vector<Sampled> top(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    TopEntry entry;
    std::memcpy(&entry, answers_.data() + offset + i * sizeof entry, sizeof entry);
    top[i] = {entry.token, entry.logprob};
  }
  return top;
}

void ClientChannel::read_text(Open& open, std::uint32_t end, ChannelProgress& progress) const {
  if (end <= open.text_read) return;
  progress.text.append(
      reinterpret_cast<const char*>(answers_.data() + open.text.offset + open.text_read),
      end - open.text_read);
  open.text_read = end;
}

std::uint32_t ClientChannel::serving_engine() const {
  auto* header = reinterpret_cast<ChannelHeader*>(answers_.data());
  return std::atomic_ref(header->engine).load(std::memory_order_relaxed);
}

bool ClientChannel::is_served_by(EngineLife engine) const {
  auto* header = reinterpret_cast<ChannelHeader*>(answers_.data());
  return (std::atomic_ref(header->engine_slots).load(std::memory_order_relaxed) >> engine.slot &
          1) != 0;
}

void ClientChannel::abort(std::uint32_t slot) {
  KV_KILL_POINT("abort.begins");
  std::atomic_ref(mark(slot).aborted).store(numbers_[slot], std::memory_order_release);
  KV_KILL_POINT("abort.stored");
  wake_engine();
}

void ClientChannel::wake_engine() const {
  ring_engine(engine_bell_.get());
  KV_KILL_POINT("ring.engine_rung");
}

}  // namespace kvhive
