#pragma once
// A mixture of experts (models/experts.hpp) as four steps: choose each token's experts, sort the
// pairs (token, choice) by expert, multiply each expert's rows by its matrix, mix each token's
// results. A token's bits depend on that token alone. Letters as in paged_kv.hpp; E is the number
// of experts, k the number of experts of a token, N and K the widths of a product as in
// row_product.hpp. Pair t * k + i is choice i of token t. The place of a pair is where it stands
// among all pairs that are sorted by expert.

#include <cstdint>
#include <type_traits>

#include "config/dtype.hpp"

namespace kvhive {

inline constexpr std::int32_t kMostExperts = 1024;        ///< E at most
inline constexpr std::int32_t kMostExpertsPerToken = 32;  ///< k at most

/// The experts of each token by the router's logits: softmax over all experts in f32, then the k
/// most likely; of equal ones the lower number. The same of groups of experts (DeepSeek): the
/// likelihood of a group is that of its most likely expert. The rules are those of
/// ExpertRoutes::choose (models/experts.hpp). A token with NaN among its probabilities gets k
/// different experts, too; which ones is unspecified.
struct ChooseExpertsArgs {
  const float* logits = nullptr;    ///< [T, E]
  std::int32_t* experts = nullptr;  ///< [T, k] ascending by number
  float* weights = nullptr;         ///< [T, k] of those experts
  std::int32_t T = 0, E = 0, k = 0;
  bool are_weights_normed = false;  ///< the weights of a token add up to 1
  bool are_sigmoids = false;  ///< a weight is the sigmoid of the logit (Llama 4), no likelihood
  float scale = 1;            ///< of the weights
  /// Groups of E / groups consecutive experts; a token's experts are in so many of them.
  std::int32_t groups = 1, chosen_groups = 1;
};
static_assert(std::is_trivially_copyable_v<ChooseExpertsArgs>);

/// Sorts the T * k pairs (token, choice) by expert, ascending by pair for each expert.
struct SortByExpertArgs {
  const std::int32_t* experts = nullptr;  ///< [T, k] each in 0..E-1
  std::int32_t* pairs = nullptr;          ///< [T*k] the pair at each place
  std::int32_t* places = nullptr;         ///< [T*k] the inverse: the place of each pair
  std::int32_t* first = nullptr;          ///< [E+1] the place where each expert's pairs begin
  std::int32_t T = 0, E = 0, k = 0;
};
static_assert(std::is_trivially_copyable_v<SortByExpertArgs>);

/// y[p] = x[row of place p] * w[expert of place p]^T for all places, added in f32. A row's bits are
/// those of the row product with that expert's matrix.
struct ExpertProductArgs {
  const void* x = nullptr;  ///< rows of K, of dtype
  const void* w = nullptr;  ///< [E, N, K] of dtype; expert e begins at w + e * w_step elements
  void* y = nullptr;        ///< [T*k, N] of out_dtype, by place; no overlap with the others
  /// [T*k] Row p of y is computed from row pairs[p] / k of x; null: from row p of x.
  const std::int32_t* pairs = nullptr;
  const std::int32_t* first = nullptr;  ///< [E+1] of SortByExpertArgs
  std::int32_t rows = 0;                ///< T*k
  std::int32_t k = 1, E = 0, N = 0, K = 0;
  std::int64_t w_step = 0;        ///< elements from one expert's matrix to the next; 0: N*K
  Dtype dtype = Dtype::bf16;      ///< bf16, f16 or f32
  Dtype out_dtype = Dtype::bf16;  ///< bf16, f16 or f32
};
static_assert(std::is_trivially_copyable_v<ExpertProductArgs>);

/// out[t] = sum over i, ascending, of weights[t, i] * y[places[t*k+i]] (+ out[t] if adds_to_out),
/// in f32. Without `weights`, all are 1.
struct MixExpertsArgs {
  const void* y = nullptr;               ///< [T*k, width] of dtype
  const float* weights = nullptr;        ///< [T, k], or null
  const std::int32_t* places = nullptr;  ///< [T*k] of SortByExpertArgs
  float* out = nullptr;                  ///< [T, width]
  std::int32_t T = 0, k = 0, width = 0;
  bool adds_to_out = false;
  Dtype dtype = Dtype::bf16;  ///< bf16, f16 or f32
};
static_assert(std::is_trivially_copyable_v<MixExpertsArgs>);

/// The probabilities are computed as in models/experts.cpp, in f32.
void choose_experts_reference(const ChooseExpertsArgs& args);
void sort_by_expert_reference(const SortByExpertArgs& args);
/// This and the next in double precision, rounded once at the end.
void expert_product_reference(const ExpertProductArgs& args);
void mix_experts_reference(const MixExpertsArgs& args);

}  // namespace kvhive
