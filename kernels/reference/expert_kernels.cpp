#include "kernels/expert_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/element.hpp"

namespace kvhive {
namespace {

/// The numbers of the `count` largest values, the largest first; of equal ones the lower first.
std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](std::int32_t a, std::int32_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

/// The softmax of one token's logits; -1 for experts of groups that are not chosen.
std::vector<float> likelihoods(const ChooseExpertsArgs& args, std::span<const float> logits) {
  std::vector<float> values(logits.begin(), logits.end());
  const float most = std::ranges::max(values);
  float sum = 0;
  for (float& value : values) sum += value = std::exp(value - most);
  for (float& value : values) value /= sum;
  if (args.chosen_groups == args.groups) return values;
  const std::size_t size = values.size() / static_cast<std::size_t>(args.groups);
  std::vector<float> of_groups;
  for (std::size_t first = 0; first < values.size(); first += size)
    of_groups.push_back(std::ranges::max(std::span(values).subspan(first, size)));
  const auto chosen = largest(of_groups, static_cast<std::size_t>(args.chosen_groups));
  for (std::size_t e = 0; e < values.size(); ++e)
    if (std::ranges::find(chosen, static_cast<std::int32_t>(e / size)) == chosen.end())
      values[e] = -1;
  return values;
}

}  // namespace

void choose_experts_reference(const ChooseExpertsArgs& args) {
  const auto E = static_cast<std::size_t>(args.E), k = static_cast<std::size_t>(args.k);
  for (std::size_t t = 0; t < static_cast<std::size_t>(args.T); ++t) {
    const auto values = likelihoods(args, std::span(args.logits + t * E, E));
    auto chosen = largest(values, k);
    const auto weight_of = [&](std::int32_t e) {
      return args.are_sigmoids ? 1 / (1 + std::exp(-args.logits[t * E + std::size_t(e)]))
                               : values[std::size_t(e)];
    };
    float sum = 0;
    for (const std::int32_t e : chosen) sum += weight_of(e);
    std::ranges::sort(chosen);
    for (std::size_t i = 0; i < k; ++i) {
      const float weight = weight_of(chosen[i]);
      args.experts[t * k + i] = chosen[i];
      args.weights[t * k + i] = (args.are_weights_normed ? weight / sum : weight) * args.scale;
    }
  }
}

void sort_by_expert_reference(const SortByExpertArgs& args) {
  std::int32_t place = 0;
  for (std::int32_t e = 0; e < args.E; ++e) {
    args.first[e] = place;
    for (std::int32_t pair = 0; pair < args.T * args.k; ++pair) {
      if (args.experts[pair] != e) continue;
      args.places[pair] = place;
      args.pairs[place++] = pair;
    }
  }
  args.first[args.E] = place;
}

void expert_product_reference(const ExpertProductArgs& args) {
  const auto N = static_cast<std::size_t>(args.N), K = static_cast<std::size_t>(args.K);
  const std::size_t w_step = args.w_step == 0 ? N * K : static_cast<std::size_t>(args.w_step);
  for (std::int32_t e = 0; e < args.E; ++e)
    for (std::int32_t p = args.first[e]; p < args.first[e + 1]; ++p) {
      const auto row = static_cast<std::size_t>(args.pairs == nullptr ? p : args.pairs[p] / args.k);
      for (std::size_t n = 0; n < N; ++n) {
        double sum = 0;
        for (std::size_t k = 0; k < K; ++k)
          sum += double{load_element(args.x, row * K + k, args.dtype)} *
                 load_element(args.w, static_cast<std::size_t>(e) * w_step + n * K + k, args.dtype);
        store_element(args.y, static_cast<std::size_t>(p) * N + n, static_cast<float>(sum),
                      args.out_dtype);
      }
    }
}

void mix_experts_reference(const MixExpertsArgs& args) {
  const auto width = static_cast<std::size_t>(args.width), k = static_cast<std::size_t>(args.k);
  for (std::size_t t = 0; t < static_cast<std::size_t>(args.T); ++t)
    for (std::size_t d = 0; d < width; ++d) {
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i)
        sum += (args.weights == nullptr ? 1 : double{args.weights[t * k + i]}) *
               load_element(args.y, static_cast<std::size_t>(args.places[t * k + i]) * width + d,
                            args.dtype);
      float& out = args.out[t * width + d];
      out = static_cast<float>(args.adds_to_out ? sum + out : sum);
    }
}

}  // namespace kvhive
