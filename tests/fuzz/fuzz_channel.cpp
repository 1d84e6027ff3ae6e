// A hostile client. The input is the bytes of a few request slots and of the heap behind them. They
// are rewritten between the engine's reading of a request and its answer.
//
// The channel is allocated on the heap, not mapped: a new mapping for every input took nine tenths
// of the time, and AddressSanitizer detects no access behind a mapping.

#include <cstdlib>
#include <memory>

#include "base/check.hpp"
#include "ipc/engine_channel.hpp"
#include "tests/fuzz/fuzz_input.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kSlotsInUse = 3;
constexpr std::size_t kHeapInUse = 512;

class HostileClient {
 public:
  void write_slots(FuzzInput& input) {
    for (std::uint32_t i = 0; i < kSlotsInUse; ++i) {
      std::byte* slot = memory_.get() + slots_offset() + i * sizeof(RequestSlot);
      std::memset(slot, 0, sizeof(RequestSlot));
      auto& typed = *reinterpret_cast<RequestSlot*>(slot);
      // Most of a slot is stop strings. The other fields take the first bytes of the input.
      typed.state.store(SlotState(input.take<std::uint8_t>() & 3));
      typed.wants_abort.store(input.take<std::uint8_t>() & 1);
      typed.tokens.store(input.take<std::uint16_t>());
      RequestBody& body = typed.body;
      input.fill(std::as_writable_bytes(std::span(&body, 1)).first(offsetof(RequestBody, stop)));
      // Only one random offset in 2^44 lies in the channel, so about half of the slots get valid
      // ones.
      if ((input.take<std::uint8_t>() & 1) == 0) {
        for (ChannelRange* range : {&body.prompt, &body.log, &body.text}) {
          range->offset = heap_offset() + range->offset % kHeapInUse;
          range->bytes %= kHeapInUse;
        }
        body.max_tokens %= 32;
      }
    }
    input.fill({memory_.get() + heap_offset(), kHeapInUse});
  }

  /// Opens the channel as an engine that just received it does.
  std::shared_ptr<EngineChannel> open() {
    return EngineChannel::in_memory(1, 0, {memory_.get(), kLeastChannelBytes},
                                    direct_ring(UniqueFd()));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::byte* allocate() {
    void* memory = std::aligned_alloc(alignof(RequestSlot), kLeastChannelBytes);
    KV_CHECK(memory != nullptr);
    return static_cast<std::byte*>(std::memset(memory, 0, kLeastChannelBytes));
  }

  std::unique_ptr<std::byte, Free> memory_{allocate()};
};

void answer(EngineChannel& channel, const TakenRequest& request, HostileClient& client,
            FuzzInput& input) {
  KV_CHECK(request.params.max_tokens > 0 && request.journal.size() <= request.params.max_tokens);
  KV_CHECK(request.params.logprobs <= kMostLogprobs);
  const auto sink = channel.sink(request);
  if (input.take<std::uint8_t>() & 1) client.write_slots(input);
  sink->admitted({});
  GeneratedToken token;
  for (std::uint32_t i = 0; i < request.params.logprobs; ++i) token.top.push_back({});
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
  client.write_slots(input);
  const auto channel = client.open();
  do {
    for (const auto& request : channel->take_submitted()) answer(*channel, request, client, input);
    channel->take_aborts();
    client.write_slots(input);
  } while (!input.is_empty());
  return 0;
}
