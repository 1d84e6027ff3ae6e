// A hostile client. The input is the marks and bodies of a few requests and the prompts behind
// them. They are rewritten between the engine's reading of a request and its answer.
//
// The answers are allocated on the heap, not mapped: a new mapping for every input took nine tenths
// of the time, and AddressSanitizer detects no access behind a mapping.

#include <cstdlib>
#include <memory>

#include "base/check.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kSlotsInUse = 3;
constexpr std::size_t kHeapInUse = 512;

class HostileClient {
 public:
  void write_slots(FuzzInput& input) {
    for (std::uint32_t i = 0; i < kSlotsInUse; ++i) {
      RequestMark& mark = mark_in(requests_.data(), i);
      mark.submitted += input.take<std::uint8_t>() & 3;
      mark.aborted = mark.submitted - (input.take<std::uint8_t>() & 1);
      RequestBody body{};
      // Most of a body is stop strings and a salt. The other fields take the first bytes of the
      // input.
      input.fill(std::as_writable_bytes(std::span(&body, 1)).first(offsetof(RequestBody, stop)));
      // Only one random offset in 2^44 lies in the channel, so about half of the slots get valid
      // ones.
      if ((input.take<std::uint8_t>() & 1) == 0) {
        const auto move = [](ChannelRange& range, std::size_t heap) {
          range = {heap + range.offset % kHeapInUse, range.bytes % kHeapInUse};
        };
        move(body.prompt, prompts_offset());
        move(body.log, answers_offset());
        move(body.text, answers_offset());
        move(body.prompt_log, answers_offset());
        move(body.rule_lists, prompts_offset());
        body.rule_counts = {body.rule_counts.biases % 8, body.rule_counts.allowed % 32,
                            body.rule_counts.bad_words % 8};
        if ((input.take<std::uint8_t>() & 1) == 0) body.rule_lists = {}, body.rule_counts = {};
        if ((input.take<std::uint8_t>() & 1) == 0)
          body.presence_penalty = body.frequency_penalty = 0, body.repetition_penalty = 1;
        body.min_tokens %= 32;
        body.prompt_logprobs %= 2 * kMostLogprobs;
        body.max_tokens %= 32;
        body.salt_bytes %= 2 * kSaltBytes;
        body.number = mark.submitted;
      }
      body_in(requests_.data(), i) = body;
    }
    input.fill({requests_.data() + prompts_offset(), kHeapInUse});
  }

  /// Opens a new channel as an engine that just received it does.
  std::shared_ptr<EngineChannel> open() {
    std::memset(requests_.data(), 0, sizeof(RequestMarks));
    std::memset(answers_.get(), 0, slots_offset() + kSlotsInUse * sizeof(AnswerSlot));
    return reopen();
  }
  /// Another engine takes over.
  std::shared_ptr<EngineChannel> reopen() {
    return EngineChannel::in_memory(1, board_.join(),
                                    RequestFile(copy_of(file_), kLeastChannelBytes),
                                    {answers_.get(), kLeastChannelBytes}, direct_ring(UniqueFd()));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::byte* allocate() {
    void* memory = std::aligned_alloc(alignof(AnswerSlot), kLeastChannelBytes);
    KV_CHECK(memory != nullptr);
    return static_cast<std::byte*>(std::memset(memory, 0, kLeastChannelBytes));
  }

  TestBoard board_;
  UniqueFd file_ = create_empty_memory(kRequestsName, kLeastChannelBytes).value();
  MappedMemory requests_ =
      MappedMemory::map(file_.get(), kLeastChannelBytes, Access::read_write, kRequestsName).value();
  std::unique_ptr<std::byte, Free> answers_{allocate()};
};

void answer(EngineChannel& channel, const TakenRequest& request, HostileClient& client,
            FuzzInput& input) {
  KV_CHECK(request.params.max_tokens > 0 && request.journal.size() <= request.params.max_tokens);
  KV_CHECK(request.params.logprobs <= kMostLogprobs);
  KV_CHECK(request.params.cache_salt.size() <= kSaltBytes);
  KV_CHECK(check(request.params.rules).has_value());
  const auto sink = channel.sink(request);
  if (input.take<std::uint8_t>() & 1) client.write_slots(input);
  KV_CHECK(sink->start());
  sink->admitted({});
  GeneratedToken token;
  for (std::uint32_t i = 0; i < request.params.logprobs; ++i) token.top.push_back({});
  KV_CHECK(request.params.prompt_logprobs.value_or(0) <= kMostLogprobs);
  // More of the prompt than there is, with more likeliest tokens.
  sink->prompt(input.take<std::uint8_t>(),
               std::vector<PromptToken>(40, {1, 0, 1, std::vector<Sampled>(kMostLogprobs)}));
  // More tokens than the request asked for.
  for (int i = 0; i < 40; ++i) sink->token(token, "some text");
  if (input.take<std::uint8_t>() & 1) client.write_slots(input);
  sink->finished(FinishReason::length, {}, {}, 12);
  sink->flush();
}

}  // namespace
}  // namespace kvhive::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive::testing;
  static HostileClient client;
  FuzzInput input(data, size);
  auto channel = client.open();
  client.write_slots(input);
  do {
    for (const auto& request : channel->take_submitted()) answer(*channel, request, client, input);
    channel->take_aborts();
    if (input.take<std::uint8_t>() % 4 == 0) channel = client.reopen();
    client.write_slots(input);
  } while (!input.is_empty());
  return 0;
}
