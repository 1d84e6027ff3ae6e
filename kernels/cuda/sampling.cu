// One block of threads per row. All sums are of whole numbers (counts, or weights in units of
// 2^-n), so that their bits do not depend on the order of additions. Where tokens must be ordered,
// equal ones are ordered by id.

#include "kernels/sampling.hpp"

#include <bit>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kParts = 8;  ///< parts that a search cuts a range of keys into, per pass over the row

/// Whole numbers that have the same order as the floats; +0 and -0 are equal. x is not NaN.
__device__ __forceinline__ std::uint32_t key_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of_key(std::uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/// A key with its token. Of the largest key's tokens, the one with the lowest id compares largest.
__device__ __forceinline__ std::uint64_t ranked(std::uint32_t key, std::int32_t token) {
  return std::uint64_t{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(token));
}
__device__ __forceinline__ std::uint32_t key_in(std::uint64_t rank) {
  return static_cast<std::uint32_t>(rank >> 32);
}
__device__ __forceinline__ std::int32_t token_in(std::uint64_t rank) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
}

struct Sum {
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
    return a + b;
  }
};
struct Largest {
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
    return a < b ? b : a;
  }
};

/// Tokens begin..end-1 of a row.
struct Range {
  std::int32_t begin, end;

  /// Part `index` of kWarps parts. Parts are multiples of a warp wide and may be empty.
  __device__ __forceinline__ Range part(int index) const {
    const std::int32_t lanes = (end - begin + kWarp - 1) / kWarp;
    const std::int32_t width = (lanes + kWarps - 1) / kWarps * kWarp;
    const std::int32_t from = min(begin + index * width, end);
    return {from, min(from + width, end)};
  }
};

/// One row, as the block of threads that works on it sees it. All threads of the block must call
/// each member function, and all get the same result.
class Row {
 public:
  __device__ __forceinline__ Row(const float* logits, std::int32_t vocab, double units)
      : logits_(logits),
        all_{0, vocab},
        units_(units),
        scratch_(reinterpret_cast<std::uint64_t*>(shared_memory())) {}

  __device__ __forceinline__ float logit(std::int32_t token) const {
    return usable_logit(logits_[token]);
  }

  /// A weight in the units in which weights are added.
  __device__ __forceinline__ std::uint64_t counted(double weight) const {
    return static_cast<std::uint64_t>(weight * units_ + 0.5);
  }
  __device__ __forceinline__ double units() const { return units_; }

  template <class Of, class Combine>
  __device__ __forceinline__ std::uint64_t reduce(Of of, Combine combine) const {
    std::uint64_t mine = 0;
    const Range range = all_.part(warp());
#pragma unroll 4
    for (std::int32_t token = range.begin + lane(); token < range.end; token += kWarp)
      mine = combine(mine, of(token));
    return block_reduce<kThreads>(mine, scratch_, combine);
  }

  /// The largest key for which `of`, summed over the tokens with that key or a larger one, is at
  /// least `wanted`. The sum over all tokens must be at least `wanted`. No key is above `high`.
  template <class Of>
  __device__ __forceinline__ std::uint32_t find_key(std::uint32_t high, std::uint64_t wanted,
                                                    Of of) const {
    std::uint32_t low = 0;
    std::uint64_t above = 0;  // sum over the keys above `high`
    while (low < high) {
      const std::uint32_t step = (high - low) / kParts + 1;
      std::uint64_t sums[kParts - 1] =
          {};  // over the keys from low + step on, from low + 2 * step on, ...
      const Range range = all_.part(warp());
      for (std::int32_t token = range.begin + lane(); token < range.end; token += kWarp) {
        const std::uint32_t key = key_of(logit(token));
        if (key <= low || key > high) continue;
        const std::uint64_t amount = of(token);
#pragma unroll
        for (int part = 1; part < kParts; ++part)
          if (key - low >= static_cast<std::uint32_t>(part) * step) sums[part - 1] += amount;
      }
#pragma unroll
      for (int part = 1; part < kParts; ++part) {
        const std::uint64_t sum = warp_reduce(sums[part - 1], Sum());
        if (lane() == 0) scratch_[part * kWarps + warp()] = sum;
      }
      __syncthreads();
      int reached = 0;
      std::uint64_t beyond = above;  // sum over the keys above the found part
      for (int part = kParts - 1; part > reached; --part) {
        std::uint64_t sum = above;
        for (int w = 0; w < kWarps; ++w) sum += scratch_[part * kWarps + w];
        if (sum >= wanted)
          reached = part;
        else
          beyond = sum;
      }
      __syncthreads();
      const std::uint32_t width = static_cast<std::uint32_t>(reached + 1) * step - 1;
      if (reached + 1 < kParts && width < high - low) high = low + width;
      low += static_cast<std::uint32_t>(reached) * step;
      above = beyond;
    }
    return low;
  }

  /// The first token at which the running sum of `of`, by id, is above target_of(sum of all); -1 if
  /// there is none.
  template <class Of, class TargetOf>
  __device__ __forceinline__ std::int32_t find_token(Of of, TargetOf target_of) const {
    Range range = all_;
    sum_parts(range, of);
    std::uint64_t total = 0;
    for (int part = 0; part < kWarps; ++part) total += scratch_[part];
    std::uint64_t left = target_of(total);
    if (left >= total) {
      __syncthreads();
      return -1;
    }
    range = range.part(part_with(&left));
    __syncthreads();
    sum_parts(range, of);
    range = range.part(part_with(&left));
    __syncthreads();
    // From here on each warp does the same work.
    for (std::int32_t first = range.begin; first < range.end; first += kWarp) {
      const std::int32_t token = first + lane();
      std::uint64_t sum = token < range.end ? of(token) : 0;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const std::uint64_t below = __shfl_up_sync(kAllLanes, sum, distance);
        if (lane() >= distance) sum += below;
      }
      const unsigned over = __ballot_sync(kAllLanes, sum > left);
      if (over != 0) return first + __ffs(static_cast<int>(over)) - 1;
      left -= __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    return -1;
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / kWarp); }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % kWarp); }

  /// scratch[i] = the sum over part i.
  template <class Of>
  __device__ __forceinline__ void sum_parts(const Range& range, Of of) const {
    std::uint64_t mine = 0;
    const Range part = range.part(warp());
#pragma unroll 4
    for (std::int32_t token = part.begin + lane(); token < part.end; token += kWarp)
      mine += of(token);
    mine = warp_reduce(mine, Sum());
    if (lane() == 0) scratch_[warp()] = mine;
    __syncthreads();
  }
  /// The part in which the running sum passes *left. Subtracts the sum of the parts before it from
  /// *left.
  __device__ __forceinline__ int part_with(std::uint64_t* left) const {
    int part = 0;
    while (part + 1 < kWarps && *left >= scratch_[part]) *left -= scratch_[part++];
    return part;
  }

  const float* logits_;
  Range all_;
  double units_;
  std::uint64_t* scratch_;
};

/// Weights at one temperature, relative to the likeliest token's. Tokens lighter than `least` are
/// never drawn.
struct Candidates {
  double largest;
  double inverse_temperature;
  double least;

  __device__ __forceinline__ double weight(float logit) const {
    return exp((logit - largest) * inverse_temperature);
  }
  /// The token's weight as it is added up; 0 if it is no candidate.
  __device__ __forceinline__ std::uint64_t counted(const Row& row, std::int32_t token) const {
    const double own = weight(row.logit(token));
    return own >= least ? row.counted(own) : 0;
  }
};

/// A token and the sum of the weights up to its own, in the order heaviest first, equal weights by
/// id.
struct Place {
  std::int32_t token;
  std::uint64_t sum;
};

/// The token at which the running sum of the candidates' weights reaches `wanted` (1 to the sum of
/// all).
__device__ __forceinline__ Place place_of(const Row& row, std::uint32_t high,
                                          const Candidates& candidates, std::uint64_t wanted) {
  const std::uint32_t key = row.find_key(
      high, wanted, [&](std::int32_t token) { return candidates.counted(row, token); });
  // Different logits may have equal weights, so look at weights, not at keys, from here on.
  const double border = candidates.weight(value_of_key(key));
  const std::uint64_t each = row.counted(border);
  const std::uint64_t heavier = row.reduce(
      [&](std::int32_t token) -> std::uint64_t {
        const double weight = candidates.weight(row.logit(token));
        return weight > border ? row.counted(weight) : 0;
      },
      Sum());
  const std::uint64_t before = heavier < wanted
                                   ? (wanted - heavier - 1) / (each > 0 ? each : 1)
                                   : 0;  // rank of the token among those of equal weight
  const std::int32_t token = row.find_token(
      [&](std::int32_t other) -> std::uint64_t {
        return candidates.weight(row.logit(other)) == border ? 1 : 0;
      },
      [before](std::uint64_t) { return before; });
  return {token, heavier + (before + 1) * each};
}

/// The whole number below share * total; at most total - 1.
__device__ __forceinline__ std::uint64_t part_of(std::uint64_t total, double share) {
  const auto part = static_cast<std::uint64_t>(share * static_cast<double>(total));
  return part < total ? part : total - 1;
}

/// Draws a token: goes through all candidates by id or, if top_p has removed some, from the
/// lightest up, as the CPU's sampler does.
__device__ __forceinline__ std::int32_t draw(const Row& row, const SampleChoice& choice,
                                             std::int32_t vocab, float largest) {
  const std::uint32_t high = key_of(largest);
  const double share = random_share(choice.seed, choice.position);
  Candidates candidates{largest, 1.0 / choice.temperature, choice.min_p};
  if (choice.top_k > 0 && choice.top_k < vocab) {
    const std::uint32_t key = row.find_key(high, static_cast<std::uint64_t>(choice.top_k),
                                           [](std::int32_t) -> std::uint64_t { return 1; });
    candidates.least = fmax(candidates.least, candidates.weight(value_of_key(key)));
  }
  const auto counted = [&](std::int32_t token) { return candidates.counted(row, token); };
  if (choice.top_p < 1) {
    const std::uint64_t total = row.reduce(counted, Sum());
    const double enough = ceil(choice.top_p * static_cast<double>(total));
    const auto wanted = enough < 1 ? std::uint64_t{1} : static_cast<std::uint64_t>(enough);
    const Place last = place_of(row, high, candidates, wanted < total ? wanted : total);
    // Counting from the lightest up is counting from the heaviest down to the rest of the sum.
    return place_of(row, high, candidates, last.sum - part_of(last.sum, share)).token;
  }
  return row.find_token(counted, [share](std::uint64_t total) { return part_of(total, share); });
}

__global__ void __launch_bounds__(kThreads, 1)
    sample(const __grid_constant__ SampleArgs args, double units) {
  const std::int64_t index = blockIdx.x;
  const SampleChoice choice = args.choices[index];
  const Row row(args.logits + index * args.vocab, args.vocab, units);
  const bool is_first = threadIdx.x == 0;

  const std::uint64_t top = row.reduce(
      [&](std::int32_t token) { return ranked(key_of(row.logit(token)), token); }, Largest());
  const float largest = value_of_key(key_in(top));
  const bool is_possible = largest > -kInfinity;
  double total = 0;  // log(sum(exp(logit))); 0 if no token is possible
  if (is_possible) {
    // A float is exact enough: a logprob is reported as one.
    const std::uint64_t sum = row.reduce(
        [&](std::int32_t token) { return row.counted(expf(row.logit(token) - largest)); }, Sum());
    total = largest + log(static_cast<double>(sum) / row.units());
  }
  const auto logprob = [&](std::int32_t token) {
    return static_cast<float>(row.logit(token) - total);
  };

  std::int32_t token = token_in(top);
  if (choice.temperature >= kGreedyBelow)
    token = is_possible ? draw(row, choice, args.vocab, largest) : 0;
  if (is_first) {
    args.tokens[index] = token;
    args.logprobs[index] = logprob(token);
  }

  // One token after the other: each is the likeliest of those behind the previous one.
  std::uint64_t before = ~std::uint64_t{0};
  for (std::int32_t i = 0; i < min(choice.likeliest, min(args.K, args.vocab)); ++i) {
    before = row.reduce(
        [&](std::int32_t other) {
          const std::uint64_t rank = ranked(key_of(logprob(other)), other);
          return rank < before ? rank : 0;
        },
        Largest());
    if (is_first) {
      args.likeliest_tokens[index * args.K + i] = token_in(before);
      args.likeliest_logprobs[index * args.K + i] = value_of_key(key_in(before));
    }
  }
}

}  // namespace

Expected<void> sample_cuda(const SampleArgs& args, CudaStream stream) {
  if (args.n < 0 || args.vocab <= 0 || args.K < 0)
    return failure(Errc::bad_argument, "sample: " + std::to_string(args.n) + " rows of " +
                                           std::to_string(args.vocab) + ", " +
                                           std::to_string(args.K) + " likeliest");
  if (args.n == 0) return {};
  // Weights are at most 1: use as many fraction bits as keep a row's sum below 2^62.
  const int bits = 62 - std::bit_width(static_cast<std::uint32_t>(args.vocab - 1));
  return launch(sample, dim3{static_cast<unsigned>(args.n), 1, 1}, dim3{kThreads, 1, 1},
                kParts * kWarps * sizeof(std::uint64_t), stream, args,
                static_cast<double>(std::uint64_t{1} << bits));
}

}  // namespace kvhive
