#pragma once
// Mixture of experts on the CPU: a router gives each token its few most likely experts, small
// feed-forward networks, and their weighted outputs are added up.
//
// Tokens are sorted by expert, so that an expert multiplies all its tokens at once: its weights are
// read once a step. Invariant: a token's bits depend on the token alone. Its experts are added in
// the order of their numbers, whatever else is in the step.
//
// Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py (router in f32, softmax over all
// experts, then the most likely); models/deepseek_v2/modeling_deepseek_v2.py (groups, scale);
// models/llama4/modeling_llama4.py (sigmoid, weighted inputs).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/config/architecture.hpp"
#include "models/product/matmul.hpp"

namespace kvhive {

/// How experts are chosen.
struct ExpertChoice {
  std::int32_t experts = 0;         ///< E
  std::int32_t per_token = 0;       ///< k, at most E
  bool are_weights_normed = false;  ///< the weights of a token's experts add up to 1
  float scale = 1;                  ///< of the weights
  /// Experts are in so many groups of equal size, by their numbers; only those of the groups with
  /// the most likely experts are chosen from. \pre `groups` divides E
  std::int32_t groups = 1;
  std::int32_t chosen_groups = 1;
  ExpertScores scores = ExpertScores::softmax;
};

/// Which tokens of a step go to which expert.
struct ExpertRoutes {
  std::vector<std::int32_t> first;   ///< [E+1] where each expert's tokens begin; first[E] == T*k
  std::vector<std::int32_t> tokens;  ///< [T*k] rows of the step, ascending for each expert
  std::vector<float> weights;  ///< [T*k] what each expert's output, or input, is multiplied by
  bool are_of_inputs = false;  ///< the weights

  /// Chooses by the router's logits [T, E]: the k most likely experts of each token; of equals, the
  /// one with the lower number. The same of groups.
  void choose(std::span<const float> logits, const ExpertChoice& choice);

  std::int32_t count(std::int32_t expert) const { return first[expert + 1] - first[expert]; }

 private:
  std::vector<float> dense_;  ///< [T, E] weights, 0 where an expert is not chosen
  std::vector<std::int32_t> order_;
};

/// One expert: down(activation(gate(x)) * up(x)). Always set once the model is loaded.
struct ExpertWeights {
  std::optional<Matmul> gate;  ///< [inner, hidden]
  std::optional<Matmul> up;    ///< [inner, hidden]
  std::optional<Matmul> down;  ///< [hidden, inner]
};

struct ExpertShape {
  std::int32_t hidden = 0;
  std::int32_t inner = 0;
};

/// Rows that run_experts() needs, kept between steps.
struct ExpertRows {
  std::vector<float> x;     ///< [rows, hidden] the tokens of some experts
  std::vector<float> gate;  ///< [rows, inner]
  std::vector<float> up;    ///< [rows, inner]
  std::vector<float> y;     ///< [rows, hidden]

  /// Makes room for so many rows.
  void grow(std::size_t rows, const ExpertShape& shape);
  /// The most rows that are computed at once in a step of `tokens` tokens.
  static std::size_t most_rows(std::size_t tokens, std::int32_t per_token);
  /// Floats in all, at most.
  static std::size_t most_floats(std::size_t tokens, std::int32_t per_token,
                                 const ExpertShape& shape);
};

/// out = for each token the sum of its experts' outputs (SwiGLU), these or their inputs weighted.
///
/// \param x, out  [T, hidden]; may not overlap
void run_experts(const ExpertRoutes& routes, std::span<const ExpertWeights> experts,
                 const ExpertShape& shape, std::span<const float> x, ExpertRows& rows,
                 std::span<float> out);

}  // namespace kvhive
