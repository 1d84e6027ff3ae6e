#pragma once
// Sequences with made-up q, k and v in a paged cache. Everything else is poison: unused slots and
// blocks are NaN (the largest value where a type has no NaN), unused entries of the block table
// point far outside the cache.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/paged_attention.hpp"
#include "paged_arena.hpp"

namespace kvhive::testing_support {

/// Two sequences of the same seed, shape and dtype agree as far as the shorter one goes.
struct SequenceSpec {
  std::uint32_t seed = 0;
  std::int32_t tokens = 0;
};

/// One sequence's part of a call: the last q_len of its first kv_len tokens.
struct Query {
  std::size_t sequence = 0;
  std::int32_t kv_len = 0;
  std::int32_t q_len = 0;
  std::int32_t q_from = -1;  ///< position whose vectors are the query's; -1: its own
};

/// Sequences of these lengths, and one query for each of them, of at most `q_len` tokens.
std::vector<SequenceSpec> sequences_of(const std::vector<std::int32_t>& lengths);
std::vector<Query> queries_of(const std::vector<std::int32_t>& lengths, std::int32_t q_len);

/// The options of a call of attention.
struct Features {
  std::int32_t window = 0;
  std::int32_t chunk = 0;
  float soft_cap = 0;
  bool has_sinks = false;
  bool wants_lse = true;
};

using Attention = void (*)(const PagedAttentionArgs&);

struct Output {
  std::vector<float> out;  ///< [T, H, D]
  std::vector<float> lse;  ///< [T, H]; empty if not asked for
};

struct ExactOutput {
  std::vector<double> out;
  std::vector<double> lse;
};

class KvFixture {
 public:
  /// `block_seed` decides which blocks each sequence gets.
  KvFixture(Shape shape, std::vector<SequenceSpec> sequences, std::uint32_t block_seed = 1);

  /// Runs `attention` over the queries. Expects that it writes all of out and lse, nothing around
  /// them, no NaN, and nothing to the cache.
  Output run(Attention attention, const std::vector<Query>& queries, const Features& features = {});
  std::vector<float> attend(Attention attention, const std::vector<Query>& queries,
                            const Features& features = {}) {
    return run(attention, queries, features).out;
  }

  /// Computes the same results in double precision from plain arrays, without pages.
  ExactOutput run_densely(const std::vector<Query>& queries, const Features& features = {}) const;
  std::vector<double> attend_densely(const std::vector<Query>& queries,
                                     const Features& features = {}) const {
    return run_densely(queries, features).out;
  }

  /// From now on all queries are as this type holds them, whatever type they are passed in.
  void round_queries_to(Dtype dtype);

  /// Overwrites k and v of one sequence from token `first` to the end of its last block.
  void poison_tokens_from(std::size_t sequence, std::int32_t first, float value);

  /// Makes the first `blocks` entries of a sequence's row of the block table point outside the
  /// cache.
  void drop_first_blocks(std::size_t sequence, std::int32_t blocks);

  const Shape& shape() const { return shape_; }
  PagedKv kv() { return arena_.kv(); }

 private:
  /// K or V of a sequence: the stored elements and their scales.
  struct Plane {
    std::vector<float> elements;  ///< [tokens, G, D] as stored
    std::vector<float> scales;    ///< [tokens, G]
  };
  struct Sequence {
    std::int32_t tokens;
    std::vector<float> q;  ///< [tokens, H, D] as q_dtype holds them
    Plane k, v;
  };

  Sequence make_sequence(SequenceSpec spec) const;
  std::int32_t blocks_of(std::int32_t tokens) const { return (tokens + shape_.S - 1) / shape_.S; }
  void deal_blocks(std::uint32_t block_seed);
  void alias_blocks();
  void alias_block(std::size_t to, std::int32_t to_block, std::size_t from,
                   std::int32_t from_block);
  void store(std::size_t sequence, std::int32_t position, std::int32_t g);
  double score(const Sequence& sequence, const Features& features, std::int32_t p, std::int32_t h,
               std::int32_t t) const;
  void attend_densely(const Sequence& sequence, std::int32_t p, std::int32_t h,
                      const Features& features, ExactOutput& output) const;

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::int32_t table_width_ = 0;      ///< M
  std::vector<BlockId> block_table_;  ///< [sequences, M]
  PagedArena arena_;
};

float scale_of(const Shape& shape);
float sink_of(std::int32_t h);

/// The largest |got - want| / |want| of all rows of D elements, in the Euclidean norm; a row of
/// zeros must be got exactly.
double worst_relative_error(const std::vector<float>& got, const std::vector<double>& want,
                            std::int32_t D);

/// The largest |got - want|; infinities must be equal.
double worst_error(const std::vector<float>& got, const std::vector<double>& want);

/// The largest worst_relative_error() that is allowed.
double tolerance_of(const Shape& shape);

/// Equal as bits: NaN equals itself, 0 is not -0.
bool same_bits(std::span<const float> a, std::span<const float> b);

}  // namespace kvhive::testing_support
