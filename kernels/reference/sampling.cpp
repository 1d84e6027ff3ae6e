#include "kernels/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/arguments.hpp"

namespace kvhive {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Weighed {
  std::int32_t token = 0;
  double weight = 0;
};

double largest_of(std::span<const float> logits) {
  double largest = kNothing;
  for (const float logit : logits) largest = std::max<double>(largest, usable_logit(logit));
  return largest;
}

/// log(sum(exp(logit))), or 0 if no token is possible.
double log_total(std::span<const float> logits) {
  const double largest = largest_of(logits);
  if (largest == kNothing) return 0;
  double total = 0;
  for (const float logit : logits) total += std::exp(usable_logit(logit) - largest);
  return largest + std::log(total);
}

/// Sorted by logprob as it is reported, a float; equal ones by id.
std::vector<std::int32_t> likeliest_first(std::span<const float> logprobs) {
  std::vector<std::int32_t> tokens(logprobs.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  std::ranges::stable_sort(
      tokens, [&](std::int32_t a, std::int32_t b) { return logprobs[a] > logprobs[b]; });
  return tokens;
}

/// Draws a token. Lowers `margin` to the distance to the nearest border between two tokens.
std::int32_t draw(std::span<const float> logits, const SampleChoice& choice, double& margin) {
  const double largest = largest_of(logits);
  std::vector<Weighed> all;
  for (std::size_t i = 0; i < logits.size() && largest != kNothing; ++i) {
    const double weight = std::exp((usable_logit(logits[i]) - largest) / choice.temperature);
    if (weight > 0 && weight >= choice.min_p) all.push_back({static_cast<std::int32_t>(i), weight});
    if (choice.min_p > 0 && weight < 1) margin = std::min(margin, std::abs(weight - choice.min_p));
  }
  if (all.empty()) return 0;
  std::ranges::stable_sort(all,
                           [](const Weighed& a, const Weighed& b) { return a.weight > b.weight; });
  const auto k = static_cast<std::size_t>(std::max(choice.top_k, 0));
  if (k > 0 && k < all.size()) {
    const double least = all[k - 1].weight;
    std::erase_if(all, [&](const Weighed& one) { return one.weight < least; });
  }
  if (choice.top_p < 1) {
    double total = 0, kept = 0;
    for (const Weighed& one : all) total += one.weight;
    std::size_t count = 0;
    do {
      kept += all[count++].weight;
      margin = std::min(margin, std::abs(kept / total - choice.top_p));
    } while (kept < choice.top_p * total && count < all.size());
    all.resize(count);
  }
  if (choice.top_p <
      1)  // from the lightest token up, the order that models/sampling/sampler.hpp has them in
    std::ranges::reverse(all);
  else
    std::ranges::sort(all, {}, &Weighed::token);
  double total = 0, before = 0;
  for (const Weighed& one : all) total += one.weight;
  const double share = random_share(choice.seed, choice.position);
  std::int32_t drawn = -1;
  for (const Weighed& one : all) {
    before += one.weight;
    if (&one != &all.back()) margin = std::min(margin, std::abs(before / total - share));
    if (drawn < 0 && before > share * total) drawn = one.token;
  }
  return drawn < 0 ? all.back().token : drawn;
}

}  // namespace

void sample_reference(const SampleArgs& args, double* margins) {
  check_arguments(args);
  const std::size_t vocab = args.vocab;
  for (std::size_t row = 0; row < std::size_t(args.n); ++row) {
    const std::span logits(args.logits + row * vocab, vocab);
    const SampleChoice& choice = args.choices[row];
    const double total = log_total(logits);
    std::vector<float> logprobs(vocab);
    std::ranges::transform(logits, logprobs.begin(), [&](float logit) {
      return static_cast<float>(usable_logit(logit) - total);
    });
    double margin = kInfinity;
    std::int32_t token = 0;
    if (choice.temperature < kGreedyBelow) {
      for (std::size_t i = 1; i < vocab; ++i)
        if (usable_logit(logits[i]) > usable_logit(logits[token]))
          token = static_cast<std::int32_t>(i);
    } else {
      token = draw(logits, choice, margin);
    }
    args.tokens[row] = token;
    args.logprobs[row] = logprobs[token];
    if (margins != nullptr) margins[row] = margin;

    const auto count = std::min<std::size_t>(std::max(choice.likeliest, 0), vocab);
    if (count == 0) continue;
    const auto order = likeliest_first(logprobs);
    for (std::size_t i = 0; i < count; ++i) {
      args.likeliest_tokens[row * args.K + i] = order[i];
      args.likeliest_logprobs[row * args.K + i] = logprobs[order[i]];
    }
  }
}

}  // namespace kvhive
