#include "tests/models/paged_runner.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"

namespace kvhive {

namespace {

constexpr BlockId kNowhere{UINT32_MAX};

PagedRunner::Forward on_cpu(Transformer& model, std::size_t arena_bytes) {
  return [&model, arena = std::vector(arena_bytes, std::byte{0xFF})](
             const ForwardBatch& batch, const KvLayout& layout, std::span<float> logits) mutable {
    model.forward(batch, arena.data(), layout, logits);
  };
}

}  // namespace

PagedRunner::PagedRunner(Transformer& model, Dtype kv_dtype, std::uint32_t block_size,
                         std::uint32_t blocks, std::uint32_t seed, const LayerGroups& groups)
    : PagedRunner(
          model.config(),
          on_cpu(model,
                 blocks * kv_layout(model.config(), groups, block_size, kv_dtype).block_bytes()),
          kv_dtype, block_size, blocks, seed, groups) {}

PagedRunner::PagedRunner(const ModelConfig& config, Forward forward, Dtype kv_dtype,
                         std::uint32_t block_size, std::uint32_t blocks, std::uint32_t seed,
                         const LayerGroups& groups)
    : vocab_(config.vocab_size),
      forward_(std::move(forward)),
      groups_(groups.groups),
      layout_(kv_layout(config, groups, block_size, kv_dtype)),
      blocks_(blocks) {
  for (std::uint32_t i = 0; i < blocks; ++i) free_.push_back(BlockId{i});
  std::mt19937 random(seed);
  std::shuffle(free_.begin(), free_.end(), random);
}

void PagedRunner::release_passed(Sequence& sequence) {
  sequence.tables.resize(groups_.count);
  for (std::size_t g = 0; g < groups_.count; ++g) {
    auto& table = sequence.tables[g];
    const std::size_t first =
        std::min(groups_.group[g].first_block(std::size_t(sequence.tokens), layout_.block_size),
                 table.size());
    for (std::size_t i = 0; i < first; ++i)
      if (const BlockId passed = std::exchange(table[i], kNowhere); passed != kNowhere)
        free_.insert(free_.begin(), passed);
  }
}

void PagedRunner::grow(Sequence& sequence, std::size_t tokens) {
  sequence.tokens += static_cast<std::int32_t>(tokens);
  for (auto& table : sequence.tables)
    while (table.size() * layout_.block_size < std::size_t(sequence.tokens)) {
      KV_CHECK(!free_.empty());
      table.push_back(free_.back());
      free_.pop_back();
    }
  most_held_ = std::max(most_held_, blocks_ - free_.size());
}

std::vector<std::vector<float>> PagedRunner::step(const std::vector<Feed>& feeds) {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions, query_start{0}, kv_len, logit_rows;
  std::vector<std::int64_t> slots;
  std::size_t max_blocks = 0;
  for (const Feed& feed : feeds) {
    Sequence& sequence = sequences_[feed.sequence];
    const std::int32_t first = sequence.tokens;
    release_passed(sequence);
    grow(sequence, feed.tokens.size());
    for (std::int32_t position = first; position < sequence.tokens; ++position)
      positions.push_back(position);
    tokens.insert(tokens.end(), feed.tokens.begin(), feed.tokens.end());
    query_start.push_back(static_cast<std::int32_t>(tokens.size()));
    kv_len.push_back(sequence.tokens);
    max_blocks = std::max(max_blocks, sequence.tables.front().size());
  }
  std::vector<BlockId> table(groups_.count * feeds.size() * max_blocks, kNowhere);
  auto row = table.begin();
  for (std::size_t g = 0; g < groups_.count; ++g)
    for (std::size_t b = 0; b < feeds.size(); ++b, row += std::ptrdiff_t(max_blocks)) {
      const auto& blocks = sequences_[feeds[b].sequence].tables[g];
      std::ranges::copy(blocks, row);
      for (std::int32_t t = query_start[b]; t < query_start[b + 1]; ++t)
        slots.push_back(std::int64_t{blocks[positions[t] / layout_.block_size].value} *
                            layout_.block_size +
                        positions[t] % layout_.block_size);
    }
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
