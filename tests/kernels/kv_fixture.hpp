#pragma once
// Sequences with made-up q, k and v, stored in a paged cache in which everything else is poison:
// unused slots and blocks are NaN, unused table entries point far outside.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/paged_attention.hpp"

namespace kvhive::testing_support {

struct Shape {
  Dtype dtype = Dtype::bf16;
  std::int32_t H = 4, G = 2, D = 32, S = 16;
};

/// Two sequences of the same seed, shape and dtype are the same up to the shorter one's length.
struct SequenceSpec {
  std::uint32_t seed = 0;
  std::int32_t tokens = 0;
};

/// One sequence's part of an attention call: its last q_len tokens of the first kv_len.
struct Query {
  std::size_t sequence = 0;
  std::int32_t kv_len = 0;
  std::int32_t q_len = 0;
};

using Attention = void (*)(const PagedAttentionArgs&);

class KvFixture {
 public:
  /// `block_seed` decides which blocks a sequence gets.
  KvFixture(Shape shape, std::vector<SequenceSpec> sequences, std::uint32_t block_seed = 1);

  /// Runs `attention` over the queries and returns out [T, H, D]. Expects it to write all of out,
  /// nothing around it, and nothing into the cache.
  std::vector<float> attend(Attention attention, const std::vector<Query>& queries,
                            std::int32_t window = 0);

  /// The same in double precision, from plain arrays: knows no pages.
  std::vector<double> attend_densely(const std::vector<Query>& queries,
                                     std::int32_t window = 0) const;

  /// Overwrites k and v of one sequence's tokens from `first` on, to the end of its last block.
  void poison_tokens_from(std::size_t sequence, std::int32_t first, float value);

  /// Forgets where the first `blocks` blocks of a sequence are.
  void drop_first_blocks(std::size_t sequence, std::int32_t blocks);

  const Shape& shape() const { return shape_; }

 private:
  struct Sequence {
    std::int32_t tokens;
    std::vector<float> q;  ///< [tokens, H, D]
    std::vector<float> k;  ///< [tokens, G, D], rounded as stored
    std::vector<float> v;
  };

  Sequence make_sequence(SequenceSpec spec) const;
  std::int32_t blocks_of(std::int32_t tokens) const { return (tokens + shape_.S - 1) / shape_.S; }
  void deal_blocks(std::uint32_t block_seed);
  void store(std::size_t sequence, std::int32_t position, std::int32_t g, std::span<const float> k,
             std::span<const float> v);
  void attend_densely(const Sequence& sequence, std::int32_t position, std::int32_t h,
                      std::int32_t window, double* out) const;

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::int32_t table_width_ = 0;            ///< M
  std::vector<std::uint32_t> block_table_;  ///< [sequences, M]
  std::vector<std::byte> arena_;
  PagedKv kv_;
};

float scale_of(const Shape& shape);

/// The largest |got - want| / |want| of all rows of D elements, in the Euclidean norm.
double worst_relative_error(const std::vector<float>& got, const std::vector<double>& want,
                            std::int32_t D);

/// Equal as bits: NaN equals itself, 0 is not -0.
bool same_bits(std::span<const float> a, std::span<const float> b);

}  // namespace kvhive::testing_support
