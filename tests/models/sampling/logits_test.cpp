#include "models/sampling/logits.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/sampling.hpp"
#include "tests/emulated/arithmetic.hpp"

namespace kvhive {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// By each arithmetic that this machine has.
template <class F>
void by_each_arithmetic(const F& f) {
  for (const CpuKernels kernels : kAllCpuKernels) {
    const testing_support::Arithmetic arithmetic{kernels, false};
    if (!testing_support::runs_here(arithmetic)) continue;
    SCOPED_TRACE(to_string(kernels));
    const testing_support::ComputedBy computed(arithmetic);
    f();
  }
}

TEST(Logits, TheFirstOfTheLargestIsFoundAtEveryPlace) {
  by_each_arithmetic([] {
    for (std::size_t count = 1; count < 70; ++count)
      for (std::size_t place = 0; place < count; ++place) {
        std::vector<float> logits(count, -1);
        logits[place] = 5;
        if (place + 3 < count) logits[place + 3] = 5;
        if (place > 0) logits[place - 1] = kNaN;
        ASSERT_EQ(index_of_largest(logits), place) << count;
        logits[place] = kInf;  // taken for the largest float
        if (place + 1 < count) logits[place + 1] = std::numeric_limits<float>::max();
        ASSERT_EQ(index_of_largest(logits), place) << count;
      }
    for (const float impossible : {-kInf, kNaN})
      EXPECT_EQ(index_of_largest(std::vector<float>(41, impossible)), 0u);
  });
}

TEST(Logits, WeightsAreThoseOfTheFormula) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 8);
  for (const std::size_t count : {1, 7, 8, 33, 1000}) {
    std::vector<float> logits(count);
    for (float& logit : logits) logit = normal(random);
    logits[count / 2] = -kInf;
    logits[count / 3] = kNaN;
    logits.front() = 30;
    by_each_arithmetic([&] {
      for (const double temperature : {1.0, 0.3, 2.5}) {
        std::vector<double> weights(count);
        relative_weights(logits, 30, temperature, weights);
        for (std::size_t i = 0; i < count; ++i) {
          const double expected = std::exp((double{usable_logit(logits[i])} - 30) / temperature);
          EXPECT_NEAR(weights[i], expected, 1e-15 * expected) << logits[i];
        }
        if (temperature != 1) continue;
        EXPECT_NEAR(total_weight(logits, 30), std::accumulate(weights.begin(), weights.end(), 0.0),
                    1e-12);
      }
    });
  }
}

}  // namespace
}  // namespace kvhive
