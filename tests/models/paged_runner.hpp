#pragma once
// Feeds sequences to a transformer in chunks of any size, over a paged cache whose blocks are given
// out in shuffled order. It takes the place of a scheduler.

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "models/transformer.hpp"

namespace kvhive {

class PagedRunner {
 public:
  /// Unwritten KV is NaN, so that a read of it changes the results. With several groups, or one
  /// with a window, blocks that no token to come reads are given to others, and in their places
  /// stand blocks that are nowhere.
  PagedRunner(Transformer& model, Dtype kv_dtype, std::uint32_t block_size, std::uint32_t blocks,
              std::uint32_t seed, const LayerGroups& groups);
  PagedRunner(Transformer& model, Dtype kv_dtype, std::uint32_t block_size, std::uint32_t blocks,
              std::uint32_t seed)
      : PagedRunner(model, kv_dtype, block_size, blocks, seed, one_group(model.config())) {}

  /// A transformer with an arena of its own, of `blocks` blocks.
  using Forward = std::function<void(const ForwardBatch&, const KvLayout&, std::span<float>)>;
  PagedRunner(const ModelConfig& config, Forward forward, Dtype kv_dtype, std::uint32_t block_size,
              std::uint32_t blocks, std::uint32_t seed, const LayerGroups& groups);

  struct Feed {
    int sequence = 0;
    std::vector<TokenId> tokens;
  };

  /// Runs one step. Returns the logits of every fed token, [tokens, vocab] for each feed.
  std::vector<std::vector<float>> step(const std::vector<Feed>& feeds);

  /// Runs a sequence in chunks of these sizes, repeating the last size. Returns its logits,
  /// [tokens, vocab].
  std::vector<float> run_chunked(int sequence, std::span<const TokenId> tokens,
                                 std::vector<std::size_t> chunks);

  /// The most blocks that were in use at a time.
  std::size_t most_held() const { return most_held_; }

 private:
  struct Sequence {
    std::vector<std::vector<BlockId>> tables;  ///< by group
    std::int32_t tokens = 0;
  };

  void release_passed(Sequence& sequence);
  void grow(Sequence& sequence, std::size_t tokens);

  std::size_t vocab_;
  Forward forward_;
  CacheGroups groups_;
  KvLayout layout_;
  std::size_t blocks_, most_held_ = 0;
  std::vector<BlockId> free_;
  std::map<int, Sequence> sequences_;
};

}  // namespace kvhive
