#include "models/experts.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"
#include "models/row_ops.hpp"

namespace kvhive {
namespace {

/// Rows of a group for each thread. Experts with fewer rows than this are computed side by side,
/// each by one thread; an expert with more rows keeps all threads busy by itself.
constexpr std::size_t kRowsPerThread = 128;

/// Turns a row of logits into probabilities.
void softmax(std::span<float> row) {
  const float most = *std::ranges::max_element(row);
  float sum = 0;
  for (float& value : row) sum += value = std::exp(value - most);
  for (float& value : row) value /= sum;
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// The numbers of `values`, those of the `count` largest first; of equals the lower number first.
void order_by(std::span<const float> values, std::size_t count, std::vector<std::int32_t>& order) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return values[a] != values[b] ? values[a] > values[b] : a < b;
                    });
}

/// Makes the probabilities of experts negative whose group is not one of the most likely ones.
void keep_groups(std::span<float> row, const ExpertChoice& choice,
                 std::vector<std::int32_t>& order) {
  const std::size_t size = row.size() / choice.groups;
  std::vector<float> most(choice.groups);
  for (std::size_t g = 0; g < most.size(); ++g)
    most[g] = *std::ranges::max_element(row.subspan(g * size, size));
  order_by(most, choice.chosen_groups, order);
  for (std::size_t g = choice.chosen_groups; g < most.size(); ++g)
    std::ranges::fill(row.subspan(order[g] * size, size), -1.0f);
}

void copy_scaled(std::span<const float> from, float factor, float* to) {
  for (std::size_t d = 0; d < from.size(); ++d) to[d] = factor * from[d];
}

/// Consecutive experts that are computed together.
struct Group {
  std::int32_t first = 0;
  std::int32_t end = 0;
};

/// As many experts from `first` on as have `most_rows` rows together; at least one.
Group next_group(const ExpertRoutes& routes, std::int32_t first, std::int32_t experts,
                 std::size_t most_rows) {
  Group group{first, first + 1};
  while (group.end < experts &&
         std::size_t(routes.first[group.end + 1] - routes.first[first]) <= most_rows)
    ++group.end;
  return group;
}

/// The part of `values` that belongs to rows first..first+count, `width` wide.
std::span<float> rows_of(std::vector<float>& values, std::size_t first, std::size_t count,
                         std::size_t width) {
  return std::span(values).subspan(first * width, count * width);
}

}  // namespace

void ExpertRoutes::choose(std::span<const float> logits, const ExpertChoice& choice) {
  const std::size_t E = choice.experts, k = choice.per_token;
  KV_CHECK(k > 0 && k <= E && logits.size() % E == 0, k, E, logits.size());
  KV_CHECK(E % choice.groups == 0 && E / choice.groups * choice.chosen_groups >= k, choice.groups,
           choice.chosen_groups);
  const std::size_t T = logits.size() / E;
  are_of_inputs = choice.scores == ExpertScores::sigmoid;
  dense_.assign(logits.begin(), logits.end());
  for (std::size_t t = 0; t < T; ++t) {
    const auto row = std::span(dense_).subspan(t * E, E);
    if (choice.scores == ExpertScores::softmax) softmax(row);
    if (choice.chosen_groups < choice.groups) keep_groups(row, choice, order_);
    order_by(row, k, order_);
    if (choice.scores == ExpertScores::sigmoid)
      for (std::size_t i = 0; i < k; ++i) row[order_[i]] = sigmoid(row[order_[i]]);
    float sum = 0;
    for (std::size_t i = 0; i < k; ++i) sum += row[order_[i]];
    // What is not chosen becomes negative: a chosen expert's weight may be 0.
    for (std::size_t i = k; i < E; ++i) row[order_[i]] = -1;
    if (choice.are_weights_normed)
      for (std::size_t i = 0; i < k; ++i) row[order_[i]] /= sum;
    if (choice.scale != 1)
      for (std::size_t i = 0; i < k; ++i) row[order_[i]] *= choice.scale;
  }
  first.clear();
  tokens.clear();
  weights.clear();
  for (std::size_t e = 0; e < E; ++e) {
    first.push_back(static_cast<std::int32_t>(tokens.size()));
    for (std::size_t t = 0; t < T; ++t) {
      if (dense_[t * E + e] < 0) continue;
      tokens.push_back(static_cast<std::int32_t>(t));
      weights.push_back(dense_[t * E + e]);
    }
  }
  first.push_back(static_cast<std::int32_t>(tokens.size()));
}

void ExpertRows::grow(std::size_t rows, const ExpertShape& shape) {
  for (auto* const wide : {&x, &y})
    if (wide->size() < rows * shape.hidden) wide->resize(rows * shape.hidden);
  for (auto* const narrow : {&gate, &up})
    if (narrow->size() < rows * shape.inner) narrow->resize(rows * shape.inner);
}

std::size_t ExpertRows::most_rows(std::size_t tokens, std::int32_t per_token) {
  const std::size_t of_group = kRowsPerThread * omp_get_max_threads();
  return std::min(tokens * per_token, std::max(tokens, of_group));
}

std::size_t ExpertRows::most_floats(std::size_t tokens, std::int32_t per_token,
                                    const ExpertShape& shape) {
  return most_rows(tokens, per_token) * 2 * (std::size_t(shape.hidden) + shape.inner);
}

void run_experts(const ExpertRoutes& routes, std::span<const ExpertWeights> experts,
                 const ExpertShape& shape, std::span<const float> x, ExpertRows& rows,
                 std::span<float> out) {
  KV_CHECK(x.size() == out.size(), x.size(), out.size());
  std::ranges::fill(out, 0.0f);
  const auto E = static_cast<std::int32_t>(experts.size());
  const std::size_t hidden = shape.hidden, inner = shape.inner;
  const std::size_t most_rows = kRowsPerThread * omp_get_max_threads();
  for (Group group; group.end < E;) {
    group = next_group(routes, group.end, E, most_rows);
    const std::int32_t begin = routes.first[group.first], end = routes.first[group.end];
    if (begin == end) continue;
    const std::size_t count = end - begin;
    rows.grow(count, shape);
    for (std::int32_t i = begin; i < end; ++i)
      copy_scaled(x.subspan(routes.tokens[i] * hidden, hidden),
                  routes.are_of_inputs ? routes.weights[i] : 1, &rows.x[(i - begin) * hidden]);

    const auto run = [&](std::int32_t e) {
      const std::size_t of_expert = routes.count(e), at = routes.first[e] - begin;
      if (of_expert == 0) return;
      const auto from = rows_of(rows.x, at, of_expert, hidden);
      const auto gate = rows_of(rows.gate, at, of_expert, inner);
      const auto up = rows_of(rows.up, at, of_expert, inner);
      const Matmul::Output outputs[] = {{&*experts[e].gate, gate}, {&*experts[e].up, up}};
      Matmul::apply_all(from, outputs);
      silu_multiply(gate, up);
      experts[e].down->apply(gate, rows_of(rows.y, at, of_expert, hidden));
    };
    // Inside a parallel loop a product is computed by the thread that calls it; an expert that is
    // alone keeps all threads busy.
    bool has_several = false;
    for (std::int32_t e = group.first; e < group.end; ++e)
      has_several |= routes.count(e) > 0 && std::size_t(routes.count(e)) < count;
#pragma omp parallel for schedule(dynamic) if (has_several)
    for (std::int32_t e = group.first; e < group.end; ++e) run(e);

    for (std::int32_t i = begin; i < end; ++i) {
      const auto to = out.subspan(routes.tokens[i] * hidden, hidden);
      const float* from = &rows.y[(i - begin) * hidden];
      const float weight = routes.are_of_inputs ? 1 : routes.weights[i];
      for (std::size_t d = 0; d < hidden; ++d) to[d] += weight * from[d];
    }
  }
}

}  // namespace kvhive
