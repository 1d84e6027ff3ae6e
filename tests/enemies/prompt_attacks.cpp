// Attacks by what a request says: lengths, ranges and texts, and rewriting them while they are
// read.

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/enemies/attacks.hpp"

namespace kvhive::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A valid request may use the engine for as long as it computes; that is no attack. So prompts here
// consist of the byte kNoTokens: as tokens they name ids that do not exist, and the engine refuses
// them when it has read them; as text they are too long, or a few letters.
constexpr auto kNoTokens = std::byte{0xff};
constexpr std::uint64_t kShortPrompt = 8;

/// A request that is refused only for its tokens, with its prompt at the start of the heap.
RequestBody valid_body(std::uint64_t prompt_bytes) {
  RequestBody body{};
  const auto up = [](std::uint64_t at) { return (at + 63) / 64 * 64; };
  body.prompt_kind = PromptKind::tokens;
  body.prompt = {prompts_offset(), prompt_bytes};
  body.log = {up(answers_offset()), record_bytes(0)};
  body.text = {up(body.log.offset + body.log.bytes), 4096};
  body.max_tokens = 1;
  body.top_p = body.repetition_penalty = 1;
  return body;
}

void fill_heap(const SeizedChannel& channel) {
  const auto heap = channel.bytes().subspan(prompts_offset());
  std::fill_n(heap.begin(), std::min<std::size_t>(heap.size(), std::size_t{1} << 20), kNoTokens);
}

/// Sets one field to a number of the kind that programs get wrong.
void spoil(Enemy& enemy, RequestBody& body) {
  const std::uint64_t odd = enemy.odd_number();
  const auto odd32 = static_cast<std::uint32_t>(odd);
  switch (enemy.below(14)) {
    case 0: body.prompt.bytes = odd < 16'384 ? odd + 16'384 : odd; break;
    case 1: body.prompt.offset = odd; break;
    case 2: body.log.bytes = odd; break;
    case 3: body.log.offset = odd; break;
    case 4: body.text.bytes = odd; break;
    case 5: body.text.offset = odd; break;
    case 6: body.max_tokens = odd32; break;
    case 7: body.logprobs = odd32; break;
    case 8: body.prompt_kind = static_cast<PromptKind>(odd32 % 4); break;
    case 9: body.stop_count = odd32; break;
    case 10: body.stop_token_count = odd32; break;
    case 11: std::memcpy(&body.temperature, &odd32, 4); break;
    case 12: body.stop_bytes[enemy.below(kMostStopStrings)] = odd32; break;
    default: enemy.fill(std::as_writable_bytes(std::span(&body, 1)));
  }
}

void send_wrong_requests(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  fill_heap(*channel);
  for (std::uint64_t i = enemy.below(16) + 1; i > 0; --i) {
    RequestBody body = valid_body(kShortPrompt);
    for (std::uint64_t wrong = enemy.below(3) + 1; wrong > 0; --wrong) spoil(enemy, body);
    channel->submit(enemy.below(kChannelSlots), body);
  }
  channel->ring();
}

/// All slots name the same bytes, as many as the channel has.
void name_the_same_bytes(Enemy& enemy) {
  auto channel = enemy.seize(std::size_t{4} << 20);
  if (!channel) return;
  fill_heap(*channel);
  RequestBody body = valid_body(kShortPrompt);
  body.prompt_kind = static_cast<PromptKind>(enemy.below(2));
  body.prompt.bytes = (std::size_t{2} << 20) >> enemy.below(8);  // at least 16 KiB
  for (std::size_t slot = 0; slot < kChannelSlots; ++slot) channel->submit(slot, body);
  channel->ring();
  if (enemy.chance(2)) enemy.hold(std::move(*channel));
}

/// Requests' numbers, lengths and ranges change all the time while the engine reads them.
void rewrite_what_is_read(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  fill_heap(*channel);
  const auto end = Clock::now() + std::chrono::milliseconds(1 + enemy.below(5));
  for (int rings = 0; Clock::now() < end; ++rings) {
    const std::size_t slot = enemy.below(4);
    channel->submit(slot, valid_body(kShortPrompt));
    if (rings < 20) channel->ring();
    for (int i = 0; i < 200; ++i) {
      spoil(enemy, channel->body(slot));
      channel->body(slot).number = channel->mark(slot).submitted += i % 2;
      channel->mark(slot).aborted = channel->mark(slot).submitted - enemy.below(2);
    }
  }
}

std::string repeated(const std::string& piece, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() < bytes) text += piece;
  return text;
}

/// Texts that tokenizers and normalizers take long for. They have more tokens than a sequence of
/// the demo model. Those of more than 64 KiB are refused by their length alone.
std::string slow_text(Enemy& enemy) {
  const std::size_t bytes = std::size_t{1} << (enemy.chance(4) ? 16 + enemy.below(6) : 15);
  switch (enemy.below(5)) {
    case 0: return "a" + repeated("\u0301\u0316\u0327", bytes);  // marks out of order
    case 1: return repeated("a", bytes);
    case 2: return repeated("\xff\xc0\x80", bytes);  // not UTF-8
    case 3: return repeated(" \t\n", bytes);
    default: return repeated("\U0001F469\u200D\U0001F52C ", bytes);
  }
}

void send_slow_texts(Enemy& enemy) {
  auto channel = enemy.seize(std::size_t{8} << 20);
  if (!channel) return;
  for (std::uint64_t i = enemy.below(3) + 1; i > 0; --i) {
    ChannelRequest request;
    request.prompt = slow_text(enemy);
    request.params.max_tokens = 1;
    const auto slot = channel->channel.submit(request);
    if (slot && enemy.chance(2)) channel->channel.abort(*slot);
  }
  if (enemy.chance(2)) enemy.hold(std::move(*channel));
}

/// Every turn that a channel had would be paid by all others.
void fill_many_channels(Enemy& enemy) {
  std::vector<SeizedChannel> channels;
  for (std::uint64_t i = enemy.below(24) + 1; i > 0; --i)
    if (auto channel = enemy.seize()) channels.push_back(std::move(*channel));
  const auto end = Clock::now() + std::chrono::milliseconds(1 + enemy.below(20));
  do {
    for (const SeizedChannel& channel : channels) {
      for (std::size_t slot = 0; slot < kChannelSlots; ++slot) {
        channel.submit(slot, RequestBody{});
      }
      channel.ring();
    }
  } while (Clock::now() < end);
  for (SeizedChannel& channel : channels)
    if (enemy.chance(4)) enemy.hold(std::move(channel));
}

/// Questions for room are valid, cost no queue, and are no fair share's: only their turns limit
/// them.
void ask_without_end(Enemy& enemy) {
  auto channel = enemy.seize(std::size_t{1} << 20);
  if (!channel) return;
  const std::size_t tokens = std::size_t{16} << enemy.below(7);  // to half the demo model's length
  const auto heap = channel->bytes().subspan(prompts_offset(), tokens * sizeof(TokenId));
  for (std::size_t i = 0; i < tokens; ++i) {
    const auto token = static_cast<TokenId>(300 + enemy.below(100));
    std::memcpy(heap.data() + i * sizeof token, &token, sizeof token);
  }
  RequestBody body = valid_body(heap.size());
  body.only_asks = 1;
  const auto end = Clock::now() + std::chrono::milliseconds(1 + enemy.below(50));
  do {
    for (std::size_t slot = 0; slot < kChannelSlots; ++slot) channel->submit(slot, body);
    channel->ring();
  } while (Clock::now() < end);
  if (enemy.chance(2)) enemy.hold(std::move(*channel));
}

constexpr Attack kAttacks[] = {
    {"wrong lengths and ranges", "S4", send_wrong_requests},
    {"all slots name the same bytes", "S4", name_the_same_bytes},
    {"rewrite slots that are read", "S4", rewrite_what_is_read},
    {"many channels with malformed requests", "S4", fill_many_channels},
    {"texts that are slow to tokenise", "S12", send_slow_texts},
    {"questions for room without end", "S12", ask_without_end},
};

}  // namespace

std::span<const Attack> prompt_attacks() { return kAttacks; }

}  // namespace kvhive::testing
