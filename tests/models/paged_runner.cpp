#include "tests/models/paged_runner.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"

namespace kvhive {

namespace {

PagedRunner::Forward on_cpu(Transformer& model, std::size_t arena_bytes) {
  return [&model, arena = std::vector(arena_bytes, std::byte{0xFF})](
             const ForwardBatch& batch, const KvLayout& layout, std::span<float> logits) mutable {
    model.forward(batch, arena.data(), layout, logits);
  };
}

}  // namespace

PagedRunner::PagedRunner(Transformer& model, Dtype kv_dtype, std::uint32_t block_size,
                         std::uint32_t blocks, std::uint32_t seed)
    : PagedRunner(
          model.config(),
          on_cpu(model, kv_layout(model.config(), one_group(model.config()), block_size, kv_dtype)
                                .block_bytes() *
                            blocks),
          kv_dtype, block_size, blocks, seed) {}

PagedRunner::PagedRunner(const ModelConfig& config, Forward forward, Dtype kv_dtype,
                         std::uint32_t block_size, std::uint32_t blocks, std::uint32_t seed)
    : vocab_(config.vocab_size),
      forward_(std::move(forward)),
      layout_(kv_layout(config, one_group(config), block_size, kv_dtype)) {
  for (std::uint32_t i = 0; i < blocks; ++i) free_.push_back(BlockId{i});
  std::mt19937 random(seed);
  std::shuffle(free_.begin(), free_.end(), random);
}

void PagedRunner::grow(Sequence& sequence, std::size_t tokens) {
  sequence.tokens += static_cast<std::int32_t>(tokens);
  while (sequence.blocks.size() * layout_.block_size < std::size_t(sequence.tokens)) {
    KV_CHECK(!free_.empty());
    sequence.blocks.push_back(free_.back());
    free_.pop_back();
  }
}

std::vector<std::vector<float>> PagedRunner::step(const std::vector<Feed>& feeds) {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions, query_start{0}, kv_len, logit_rows;
  std::vector<std::int64_t> slots;
  std::size_t max_blocks = 0;
  for (const Feed& feed : feeds) {
    Sequence& sequence = sequences_[feed.sequence];
    const std::int32_t first = sequence.tokens;
    grow(sequence, feed.tokens.size());
    for (std::int32_t position = first; position < sequence.tokens; ++position) {
      positions.push_back(position);
      const auto block = sequence.blocks[position / layout_.block_size];
      slots.push_back(std::int64_t{block.value} * layout_.block_size +
                      position % layout_.block_size);
    }
    tokens.insert(tokens.end(), feed.tokens.begin(), feed.tokens.end());
    query_start.push_back(static_cast<std::int32_t>(tokens.size()));
    kv_len.push_back(sequence.tokens);
    max_blocks = std::max(max_blocks, sequence.blocks.size());
  }
  std::vector<BlockId> table(feeds.size() * max_blocks, BlockId{UINT32_MAX});
  for (std::size_t b = 0; b < feeds.size(); ++b)
    std::ranges::copy(sequences_[feeds[b].sequence].blocks, table.begin() + b * max_blocks);
  logit_rows.resize(tokens.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);

  std::vector<float> logits(tokens.size() * vocab_);
  forward_({tokens, positions, query_start, kv_len, table, slots, logit_rows,
            static_cast<std::int32_t>(max_blocks)},
           layout_, logits);
  std::vector<std::vector<float>> parts;
  for (std::size_t b = 0; b < feeds.size(); ++b)
    parts.emplace_back(logits.begin() + query_start[b] * vocab_,
                       logits.begin() + query_start[b + 1] * vocab_);
  return parts;
}

std::vector<float> PagedRunner::run_chunked(int sequence, std::span<const TokenId> tokens,
                                            std::vector<std::size_t> chunks) {
  std::vector<float> logits;
  for (std::size_t i = 0; !tokens.empty(); ++i) {
    const auto count = std::min(chunks[std::min(i, chunks.size() - 1)], tokens.size());
    const auto part = step({{sequence, {tokens.begin(), tokens.begin() + count}}}).front();
    logits.insert(logits.end(), part.begin(), part.end());
    tokens = tokens.subspan(count);
  }
  return logits;
}

}  // namespace kvhive
