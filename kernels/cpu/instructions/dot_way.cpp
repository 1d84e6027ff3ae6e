#include "kernels/cpu/instructions/dot_way.hpp"

#include <immintrin.h>

#include <algorithm>
#include <atomic>

#include "base/stop_watch.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"

namespace kvhive {
namespace {

constexpr int kSteps = 2000, kSums = 16;
/// Multiplications must be so much faster: to convert weights to floats costs many rows time, and
/// few rows wait for memory either way.
constexpr double kLeastGain = 1.5;

alignas(64) constexpr float kZeros[16] = {};

/// Zeros, of which the compiler does not know that they are.
__attribute__((target("avx512f"))) inline __m512 zeros() {
  const float* from = kZeros;
  asm volatile("" : "+r"(from));
  return _mm512_load_ps(from);
}

__attribute__((target("avx512f"))) inline void load(__m512 (&sums)[kSums]) {
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = zeros();
}

__attribute__((target("avx512f"))) inline void keep(const __m512 (&sums)[kSums]) {
  __m512 sum = sums[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) sum = _mm512_add_ps(sum, sums[i]);
  asm volatile("" ::"v"(sum));
}

__attribute__((target("avx512f,avx512bf16"))) void run_instructions() {
  __m512 sums[kSums];
  load(sums);
  const auto a = (__m512bh)zeros(), b = (__m512bh)zeros();
  for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  keep(sums);
}

__attribute__((target("avx512f"))) void run_multiplications() {
  __m512 sums[kSums];
  load(sums);
  const __m512 a = zeros(), b = zeros();
  for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_fmadd_ps(a, b, _mm512_fmadd_ps(b, a, sums[i]));
  keep(sums);
}

/// By turns; the fastest run counts, because disturbances only slow a run down.
ChosenWay<DotWay> measure() {
  ChosenWay<DotWay> chosen;
  if (!grants(CpuKernels::avx512_bf16)) return chosen;
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t way = 0; way < chosen.rates.size(); ++way) {
      const auto start = thread_cpu_time();
      (way == 0 ? run_instructions : run_multiplications)();
      chosen.rates[way] =
          std::max(chosen.rates[way], double{kSteps} * kSums /
                                          static_cast<double>((thread_cpu_time() - start).count()));
    }
  if (chosen.rates[1] >= kLeastGain * chosen.rates[0]) chosen.way = DotWay::multiplications;
  return chosen;
}

constexpr int kNotForced = -1;
std::atomic<int> forced_way{kNotForced};

}  // namespace

ChosenWay<DotWay> dot_way() {
  if (const int forced = forced_way; forced != kNotForced)
    return {.way = static_cast<DotWay>(forced)};
  static const ChosenWay<DotWay> measured = measure();
  return measured;
}

void force_dot_way(std::optional<DotWay> way) {
  forced_way = way ? static_cast<int>(*way) : kNotForced;
}

}  // namespace kvhive
