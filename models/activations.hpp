#pragma once
// What a step of Transformer computes with. Private to it.

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/memory/line_allocator.hpp"
#include "models/config/model_config.hpp"
#include "models/experts.hpp"
#include "models/latent/latent_heads.hpp"
#include "models/rope.hpp"

namespace kvhive {

/// The intermediate rows of a step, kept between steps so that they are allocated once.
struct Activations {
  LineVector<float> hidden;        ///< [T, hidden], the residual stream
  LineVector<float> normed;        ///< [T, hidden]
  LineVector<float> q;             ///< [T, H, D]
  LineVector<float> k;             ///< [T, G, D]
  LineVector<float> v;             ///< [T, G, D]
  LineVector<float> heads;         ///< [T, H, size of a value], attention's output
  LineVector<float> gate;          ///< [inner_rows(T), intermediate]
  LineVector<float> up;            ///< [inner_rows(T), intermediate]
  LineVector<float> wanted;        ///< [logit rows, hidden]
  LineVector<float> router;        ///< [T, experts], logits
  LineVector<float> mixed;         ///< [T, hidden], the experts' output
  LineVector<float> shared_gate;   ///< [T, shared experts' width]
  LineVector<float> shared_up;     ///< [T, shared experts' width]
  LineVector<float> shared;        ///< [T, hidden], the shared experts' output
  LineVector<float> narrow_q;      ///< [T, query rank]
  LineVector<float> kv_row;        ///< [T, latent + rope], before the latent's norm
  LineVector<float> latent;        ///< [T, latent]
  LineVector<float> shared_key;    ///< [T, rope], rotated
  LineVector<float> row_q;         ///< [T, H, latent + rope], absorbed queries
  LineVector<float> attended;      ///< [T, H, latent]
  LineVector<float> head_scratch;  ///< of absorbing, by thread
  std::vector<float> adapted;      ///< scratch of adapters
  RopeAngles angles;               ///< of layers that see everything
  RopeAngles sliding_angles;       ///< of layers with a window, where they rotate otherwise
  ExpertRoutes routes;
  ExpertRows experts;

  /// Tokens that go through a feed-forward network together. What lies between its matrices are the
  /// widest rows of a step; so many are enough for reading the weights to cost little beside
  /// multiplying, and have tasks for all threads.
  static std::size_t inner_rows(std::size_t tokens) {
    return std::min(tokens, std::max<std::size_t>(1024, 64 * omp_get_max_threads()));
  }

  using Rows = LineVector<float> Activations::*;

  /// Calls `visit` with each of the rows and how many floats it needs.
  template <class Visit>
  static void visit_sizes(const ModelConfig& config, std::size_t tokens, std::size_t logit_rows,
                          const Visit& visit) {
    const std::size_t queries = tokens * config.heads * config.head_size;
    const std::size_t keys = tokens * config.kv_heads * config.head_size;
    for (const Rows rows : {&Activations::hidden, &Activations::normed})
      visit(rows, tokens * config.hidden_size);
    visit(&Activations::q, queries);
    visit(&Activations::heads, tokens * config.heads * config.value_size());
    if (config.is_latent())
      visit_latent_sizes(config, tokens, visit);
    else
      for (const Rows rows : {&Activations::k, &Activations::v}) visit(rows, keys);
    for (const Rows rows : {&Activations::gate, &Activations::up})
      visit(rows, inner_rows(tokens) * config.intermediate_size);
    visit(&Activations::wanted, logit_rows * config.hidden_size);
    if (config.experts == 0) return;
    visit(&Activations::router, tokens * config.experts);
    visit(&Activations::mixed, tokens * config.hidden_size);
    if (config.shared_experts == 0) return;
    for (const Rows rows : {&Activations::shared_gate, &Activations::shared_up})
      visit(rows, tokens * config.shared_experts * config.expert_inner);
    visit(&Activations::shared, tokens * config.hidden_size);
  }

  template <class Visit>
  static void visit_latent_sizes(const ModelConfig& config, std::size_t tokens,
                                 const Visit& visit) {
    const LatentShape& shape = config.latent;
    visit(&Activations::narrow_q, tokens * shape.query_rank);
    visit(&Activations::kv_row, tokens * shape.row());
    visit(&Activations::latent, tokens * shape.rank);
    visit(&Activations::shared_key, tokens * shape.rope);
    visit(&Activations::row_q, tokens * config.heads * shape.row());
    visit(&Activations::attended, tokens * config.heads * shape.rank);
    visit(&Activations::head_scratch, LatentHeads::scratch_floats(tokens, shape));
  }

  void resize(const ModelConfig& config, std::size_t tokens, std::size_t logit_rows) {
    visit_sizes(config, tokens, logit_rows,
                [this](Rows rows, std::size_t floats) { (this->*rows).resize(floats); });
  }
};

}  // namespace kvhive
