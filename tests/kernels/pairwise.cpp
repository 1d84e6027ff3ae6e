#include "pairwise.hpp"

#include <numeric>
#include <random>

#include "base/check.hpp"

namespace kvhive::testing_support {
namespace {

constexpr int kUnset = -1;
constexpr int kCandidates = 6;  ///< candidates for each case, of which the best is taken
constexpr int kAttempts = 1000;

/// Numbers the values of all factors consecutively, and knows which pairs of them are still wanted.
class Cover {
 public:
  Cover(const std::vector<int>& sizes, const Allowed& allowed, std::uint32_t seed)
      : sizes_(sizes), first_(sizes.size() + 1, 0), random_(seed) {
    std::partial_sum(sizes.begin(), sizes.end(), first_.begin() + 1);
    const std::size_t values = first_.back();
    allowed_.assign(values * values, false);
    for (std::size_t f = 0; f < sizes.size(); ++f)
      for (std::size_t g = f + 1; g < sizes.size(); ++g)
        for (int v = 0; v < sizes[f]; ++v)
          for (int w = 0; w < sizes[g]; ++w)
            if (allowed({f, v}, {g, w})) {
              open_.push_back({{f, v}, {g, w}});
              allowed_[at({f, v}, {g, w})] = allowed_[at({g, w}, {f, v})] = true;
            }
    wanted_ = allowed_;
  }

  std::vector<std::vector<int>> cases() {
    std::vector<std::vector<int>> all;
    while (!open_.empty()) {
      all.push_back(best_candidate());
      strike_out(all.back());
    }
    return all;
  }

 private:
  struct Pair {
    FactorValue a, b;
  };

  std::size_t at(FactorValue a, FactorValue b) const {
    return (first_[a.factor] + a.value) * first_.back() + first_[b.factor] + b.value;
  }

  /// How many wanted pairs `value` makes with the other values of a case; -1 if it is not allowed.
  int gain(const std::vector<int>& values, FactorValue value) const {
    int pairs = 0;
    for (std::size_t f = 0; f < values.size(); ++f) {
      if (values[f] == kUnset || f == value.factor) continue;
      const std::size_t pair = at({f, values[f]}, value);
      if (!allowed_[pair]) return -1;
      pairs += wanted_[pair];
    }
    return pairs;
  }

  /// Sets `factor` to the value with the greatest gain.
  bool set_best(std::size_t factor, std::vector<int>& values, int& pairs) {
    int best = -1;
    const auto start = static_cast<int>(random_() % sizes_[factor]);
    for (int i = 0; i < sizes_[factor]; ++i) {
      const int v = (start + i) % sizes_[factor];
      const int g = gain(values, {factor, v});
      if (g > best) {
        best = g;
        values[factor] = v;
      }
    }
    pairs += best;
    return best >= 0;
  }

  /// Makes a case around one wanted pair. Returns how many wanted pairs it has, -1 if no case can
  /// have that pair.
  int make_candidate(std::vector<int>& values) {
    values.assign(sizes_.size(), kUnset);
    const Pair pair = open_[random_() % open_.size()];
    values[pair.a.factor] = pair.a.value;
    values[pair.b.factor] = pair.b.value;
    int pairs = 1;
    const std::size_t start = random_() % sizes_.size();
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const std::size_t factor = (start + i) % sizes_.size();
      if (values[factor] == kUnset && !set_best(factor, values, pairs)) return -1;
    }
    return pairs;
  }

  std::vector<int> best_candidate() {
    std::vector<int> best, values;
    int best_pairs = 0;
    for (int i = 0; i < kCandidates || best_pairs == 0; ++i) {
      KV_CHECK(i < kAttempts, open_[0].a.factor, open_[0].a.value, open_[0].b.factor,
               open_[0].b.value);
      const int pairs = make_candidate(values);
      if (pairs <= best_pairs) continue;
      best_pairs = pairs;
      best = values;
    }
    return best;
  }

  void strike_out(const std::vector<int>& values) {
    std::erase_if(open_, [&](const Pair& pair) {
      const bool is_covered =
          values[pair.a.factor] == pair.a.value && values[pair.b.factor] == pair.b.value;
      if (is_covered) wanted_[at(pair.a, pair.b)] = wanted_[at(pair.b, pair.a)] = false;
      return is_covered;
    });
  }

  std::vector<int> sizes_;
  std::vector<std::size_t> first_;  ///< number of a factor's value 0
  std::vector<char> allowed_;       ///< [value, value]
  std::vector<char> wanted_;        ///< [value, value] allowed and in no case so far
  std::vector<Pair> open_;
  std::mt19937 random_;
};

}  // namespace

std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, const Allowed& allowed,
                                             std::uint32_t seed) {
  return Cover(sizes, allowed, seed).cases();
}

}  // namespace kvhive::testing_support
