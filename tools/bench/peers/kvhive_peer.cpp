#include <cstring>
#include <optional>

#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

class KvhivePeer final : public Peer {
 public:
  explicit KvhivePeer(const SharedPool& shared) : shared_(shared) {}

  std::string name() const override { return "kvhive"; }

  void store(const DataSet& data) override {
    attach(ProcessSlot{0});
    Payload payload(data.block_bytes);
    for (const Prompt& prompt : data.prompts) {
      const auto blocks = pool_->allocate(Tier::device, kBatch);
      KV_CHECK(blocks.has_value(), blocks.error().text);
      for (std::size_t i = 0; i < kBatch; ++i)
        std::memcpy(at((*blocks)[i]), payload.of(prompt.chain[i]), data.block_bytes);
      pool_->publish(BlockPool::root({}), *blocks, prompt.chain, prompt.tokens);
      pool_->release(*blocks);
    }
  }

  void open() override { attach(ProcessSlot{1}); }

  std::uint64_t pin(const Prompt& prompt) override {
    hit_ = prompt.match(*pool_, kBatch);
    std::uint64_t sum = 0;
    for (const BlockId block : hit_.blocks) sum += first_word(at(block));
    return sum;
  }

  void unpin(const Prompt&) override { pool_->release(hit_.blocks); }

 private:
  void attach(ProcessSlot slot) {
    memory_.emplace(shared_.attach());
    sign_in(*memory_, slot, slot.value);
    pool_.emplace(*memory_, slot);
  }
  std::byte* at(BlockId block) const {
    return memory_->arena(Tier::device) +
           block.value * memory_->geometry().models[0].kv.block_bytes();
  }

  const SharedPool& shared_;
  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_;
  PrefixHit hit_;
};

}  // namespace

std::unique_ptr<Peer> make_kvhive_peer(const SharedPool& pool) {
  return std::make_unique<KvhivePeer>(pool);
}

}  // namespace kvhive::bench
