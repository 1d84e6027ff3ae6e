// Two threads in place of two processes. They share nothing but the pool: one publishes prompts,
// the other finds them and reads their bytes as plain memory.

#include <cstdio>
#include <thread>

#include "tests/support/payload.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

constexpr TokenId kPrompts = 200;
constexpr std::size_t kBlocks = 4;  // per prompt

/// The i-th prompt; both threads make the same one.
Prompt prompt_number(const BlockPool& pool, TokenId i) {
  return Prompt(pool, counting(1000 * i, kBlocks * pool.tokens_per_block()));
}

void publish_all(const PoolMemory& memory) {
  BlockPool pool(memory, ProcessSlot{0});
  for (TokenId i = 0; i < kPrompts; ++i) {
    const Prompt prompt = prompt_number(pool, i);
    const auto blocks = pool.allocate(Tier::device, kBlocks).value();
    for (std::size_t b = 0; b < kBlocks; ++b) fill_payload(memory, blocks[b], prompt.chain[b]);
    pool.publish(BlockPool::root({}), blocks, prompt.chain, prompt.tokens);
  }
}

/// Waits for each prompt by matching again. A lock or a condition variable would order the threads,
/// and ThreadSanitizer could not see a missing order in the pool.
std::size_t read_all(const PoolMemory& memory) {
  BlockPool pool(memory, ProcessSlot{1});
  std::size_t wrong = 0;
  for (TokenId i = 0; i < kPrompts; ++i) {
    const Prompt prompt = prompt_number(pool, i);
    PrefixHit hit;
    while ((hit = match_all(pool, prompt)).blocks.size() < kBlocks) {
      pool.release(hit.blocks);
      std::this_thread::yield();
    }
    for (std::size_t b = 0; b < kBlocks; ++b)
      wrong += !is_payload_right(memory, hit.blocks[b], prompt.chain[b]);
    pool.release(hit.blocks);
  }
  return wrong;
}

}  // namespace
}  // namespace kvhive::testing

int main() {
  using namespace kvhive::testing;
  const auto memory = private_pool(small_geometry(1 + kPrompts * kBlocks));
  for (const std::uint32_t slot : {0u, 1u}) occupy(memory, kvhive::ProcessSlot{slot});
  std::size_t wrong = 0;
  std::thread reader([&] { wrong = read_all(memory); });
  publish_all(memory);
  reader.join();
  std::printf("read %zu blocks, %zu of them wrong\n", std::size_t{kPrompts} * kBlocks, wrong);
  return wrong == 0 ? 0 : 1;
}
