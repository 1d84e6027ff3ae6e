// kvhive's side of the comparison with llama.cpp (bench_llama.py): its transformer over a paged
// cache in blocks of 16 tokens of bf16 that lie in shuffled order, as in an engine. Threads:
// OMP_NUM_THREADS.
//
// Usage: kvhive_llama_side DIRECTORY < commands

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "models/transformer.hpp"
#include "tests/beside/llama/commands.hpp"

namespace kvhive::beside {
namespace {

constexpr std::int32_t kBlock = 16;

class KvhiveSide {
 public:
  explicit KvhiveSide(Transformer& model)
      : model_(model),
        layout_(fastest_kv_layout(model.config(), one_group(model.config()), kBlock, Dtype::bf16)) {
  }

  std::string about() const {
    return std::to_string(omp_get_max_threads()) + " threads, " +
           std::to_string(model_.private_weight_bytes() >> 20) + " MiB of weights of its own";
  }

  void make_room(std::int32_t tokens) { sequences_of(1, tokens); }

  void prompt(std::int32_t tokens) {
    std::vector<TokenId> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t i = 0; i < tokens; ++i) ids[static_cast<std::size_t>(i)] = some(i);
    compute_prompt(ids);
  }

  /// What precedes is not computed: KV of random numbers takes as long to read.
  void prepare(std::int32_t count, std::int32_t depth, std::int32_t tokens) {
    sequences_of(count, depth + tokens);
    depth_ = depth;
  }

  void step(std::int32_t index) {
    std::vector<TokenId> ids;
    std::vector<std::int32_t> positions, query_start{0}, kv_len, logit_rows;
    std::vector<std::int64_t> slots;
    for (std::int32_t i = 0; i < count_; ++i) {
      ids.push_back(some(index * count_ + i));
      positions.push_back(depth_ + index);
      kv_len.push_back(depth_ + index + 1);
      logit_rows.push_back(i);
      query_start.push_back(i + 1);
      slots.push_back(slot(i, depth_ + index));
    }
    forward(ids, positions, query_start, kv_len, slots, logit_rows);
  }

  std::span<const float> logits(const std::vector<TokenId>& ids) {
    compute_prompt(ids);
    return logits_;
  }

 private:
  TokenId some(std::int32_t at) const { return some_token(at, model_.config().vocab_size); }

  /// Makes place for `count` sequences of `tokens` tokens, full of numbers of the size of KV.
  void sequences_of(std::int32_t count, std::int32_t tokens) {
    count_ = count;
    blocks_ = (tokens + kBlock - 1) / kBlock;
    const auto wanted = static_cast<std::size_t>(count) * static_cast<std::size_t>(blocks_);
    if (wanted <= table_.size()) return;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    std::vector<std::uint16_t> some(1 << 20);
    for (auto& value : some) value = bf16_of_float(normal(random));
    arena_.resize(layout_.block_bytes() * wanted);
    for (std::size_t at = 0; at < arena_.size(); at += some.size() * 2)
      std::memcpy(arena_.data() + at, some.data(), std::min(some.size() * 2, arena_.size() - at));
    table_.resize(wanted);
    for (std::size_t i = 0; i < wanted; ++i) table_[i] = BlockId{static_cast<std::uint32_t>(i)};
    std::shuffle(table_.begin(), table_.end(), random);
  }

  std::int64_t slot(std::int32_t sequence, std::int32_t position) const {
    const auto entry = static_cast<std::size_t>(sequence * blocks_ + position / kBlock);
    return std::int64_t{table_[entry].value} * kBlock + position % kBlock;
  }

  void compute_prompt(const std::vector<TokenId>& ids) {
    const auto tokens = static_cast<std::int32_t>(ids.size());
    std::vector<std::int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<std::int64_t> slots;
    for (const std::int32_t position : positions) slots.push_back(slot(0, position));
    forward(ids, positions, std::vector{0, tokens}, std::vector{tokens}, slots,
            std::vector{tokens - 1});
  }

  void forward(std::span<const TokenId> ids, std::span<const std::int32_t> positions,
               std::span<const std::int32_t> query_start, std::span<const std::int32_t> kv_len,
               std::span<const std::int64_t> slots, std::span<const std::int32_t> logit_rows) {
    logits_.resize(logit_rows.size() * static_cast<std::size_t>(model_.config().vocab_size));
    const auto entries = kv_len.size() * static_cast<std::size_t>(blocks_);
    model_.forward({ids, positions, query_start, kv_len, std::span(table_).first(entries), slots,
                    logit_rows, blocks_},
                   arena_.data(), layout_, logits_);
  }

  Transformer& model_;
  KvLayout layout_;
  std::int32_t count_ = 1, blocks_ = 0, depth_ = 0;
  std::vector<std::byte> arena_;
  std::vector<BlockId> table_;
  std::vector<float> logits_;
};

}  // namespace
}  // namespace kvhive::beside

int main(int argc, char** argv) {
  using namespace kvhive;
  if (argc != 2) {
    std::fputs("usage: kvhive_llama_side DIRECTORY < commands\n", stderr);
    return 2;
  }
  auto model = Transformer::load(argv[1]);
  if (!model) {
    std::fprintf(stderr, "%s\n", model.error().text.c_str());
    return 1;
  }
  beside::KvhiveSide side(*model);
  beside::answer_commands(side);
}
