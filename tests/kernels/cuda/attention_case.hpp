#pragma once
// One batch of paged attention with any options: its truth in double precision from plain arrays,
// and its run on the emulated GPU. Memory that must not be read is poison: unused slots and blocks,
// unused entries of the block table, outputs.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"

namespace kvhive::testing_support {

enum class ScaleKind { none, per_tensor, per_head, per_token };

struct AttentionCase {
  Dtype q_dtype = Dtype::bf16, kv_dtype = Dtype::bf16;
  std::int32_t D = 64, S = 16, G = 2, heads_per_kv = 2;
  /// Tokens in the cache, and how many of the last ones are queries. The first `shared` tokens
  /// (whole blocks) are those of an earlier sequence, in its blocks.
  struct Sequence {
    std::int32_t kv_len, q_len;
    std::int32_t shared = 0;
    std::size_t shared_with = 0;
  };
  std::vector<Sequence> sequences = {{33, 1}};
  std::int32_t window = 0, chunk = 0;
  float soft_cap = 0;
  bool has_sinks = false;
  ScaleKind scales = ScaleKind::none;
  /// Sequences of one seed have the same content, in whatever blocks.
  std::uint32_t seed = 1, block_seed = 1;

  std::string describe() const;
};

struct AttentionResult {
  std::vector<float> out;  ///< [T, H, D]
  std::vector<float> lse;  ///< [T, H]
};

class AttentionBatch {
 public:
  explicit AttentionBatch(const AttentionCase& c);

  /// Runs the batch. Expects success, that all of out and lse are written, and that the cache is
  /// unchanged.
  /// \param padding entries of padding of each kind in the plan
  AttentionResult run(const PlanLimits& limits = {}, std::int32_t padding = 0) const;
  /// Decodes one token of sequence b in a call of its own.
  AttentionResult run_token(std::size_t b, std::int32_t position) const;
  /// In double precision, rounded at the end.
  AttentionResult truth() const;

  /// The largest |got - want| / |want| over rows; infinite if a row that sees nothing is not 0.
  static double worst_error(const AttentionCase& c, const AttentionResult& got,
                            const AttentionResult& want);

  PagedAttentionArgs args() const;  ///< without out and lse
  SplitPlan plan(const PlanLimits& limits = {}) const { return plan_splits(args(), limits); }

 private:
  struct Tokens {
    std::vector<float> q, k, v;  ///< [tokens, H or G, D]; k, v as stored
    std::vector<float> k_scales, v_scales;
  };
  std::int32_t H() const { return case_.G * case_.heads_per_kv; }
  void make_tokens(std::uint32_t seed, std::int32_t count, Tokens* tokens) const;
  void share_tokens(const AttentionCase::Sequence& sequence, Tokens* tokens) const;
  void store_all();
  AttentionResult run(PagedAttentionArgs args, const PlanLimits& limits,
                      std::int32_t padding) const;

  AttentionCase case_;
  PagedKv kv_;
  std::vector<Tokens> tokens_;
  std::vector<std::byte> q_;
  std::vector<std::byte> arena_;
  std::vector<float> scales_;  ///< per head or tensor
  std::vector<float> sinks_;
  std::vector<BlockId> table_;
  std::vector<std::int32_t> query_start_{0}, kv_len_;
  std::int32_t M_ = 0;
};

}  // namespace kvhive::testing_support
