// Choosing experts, sorting tokens by expert and mixing the results. The products between are in
// row_product.cu, because they share its tiles.

#include "kernels/expert_kernels.hpp"

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packs.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr int kChooseThreads = 128;
constexpr int kChooseWarps = kChooseThreads / kWarp;
static_assert(kMostExpertsPerToken <= kWarp);

/// Marks an expert or a group that is not, or no longer, to be chosen. Likelihoods are not
/// negative.
constexpr float kGone = -1;

/// Finds the largest of `values`, of equal ones the first, and replaces it by kGone. The warp calls
/// it together; every lane gets the number and the value. NaN counts as 0: some number must come
/// out, and it must be one that has not come out before.
__device__ __forceinline__ int take_largest(float* values, int count, int lane, float* value) {
  // Floats that are not negative have the order of their bits. The lower half decides ties.
  std::uint64_t best = 0;
  for (int i = lane; i < count; i += kWarp) {
    if (values[i] == kGone) continue;
    const std::uint64_t bits = values[i] > 0 ? __float_as_uint(values[i]) : 0u;
    const std::uint64_t key = bits << 32 | (0xffffffffu - static_cast<std::uint32_t>(i));
    if (key > best) best = key;
  }
  best = warp_reduce(best, [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; });
  const int number = static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(best));
  *value = values[number];
  __syncwarp();  // all lanes have read the value
  if (lane == 0) values[number] = kGone;
  __syncwarp();
  return number;
}

/// Replaces the likelihoods of experts by kGone whose group is not chosen. A token's experts then
/// come from few groups, which DeepSeek keeps on few machines.
__device__ __forceinline__ void keep_groups(const ChooseExpertsArgs& args, float* likelihoods,
                                            float* groups, int lane) {
  const int size = args.E / args.groups;
  for (int group = lane; group < args.groups; group += kWarp) {
    float most = 0;
    for (int i = 0; i < size; ++i) most = fmaxf(most, likelihoods[group * size + i]);
    groups[group] = most;
  }
  __syncwarp();
  for (int i = 0; i < args.chosen_groups; ++i) {
    float most;
    take_largest(groups, args.groups, lane, &most);
  }
  for (int e = lane; e < args.E; e += kWarp)
    if (groups[e / size] != kGone) likelihoods[e] = kGone;
  __syncwarp();
}

/// One warp per token. Its likelihoods are in shared memory, followed by those of the groups; lane
/// i keeps the expert that is chosen i-th.
__global__ void __launch_bounds__(kChooseThreads)
    choose_experts(const __grid_constant__ ChooseExpertsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = std::int64_t{blockIdx.x} * kChooseWarps + warp;
  if (token >= args.T) return;
  float* const likelihoods =
      reinterpret_cast<float*>(shared_memory()) + warp * (args.E + args.groups);
  const float* const logits = args.logits + token * args.E;

  float most = -kInfinity;
  for (int e = lane; e < args.E; e += kWarp) most = fmaxf(most, logits[e]);
  most = warp_max(most);
  float sum = 0;
  for (int e = lane; e < args.E; e += kWarp) {
    const float likelihood = expf(logits[e] - most);
    likelihoods[e] = likelihood;
    sum += likelihood;
  }
  sum = warp_reduce(sum, [](float a, float b) { return a + b; });
  for (int e = lane; e < args.E; e += kWarp) likelihoods[e] /= sum;
  __syncwarp();
  if (args.chosen_groups < args.groups) keep_groups(args, likelihoods, likelihoods + args.E, lane);

  int expert = 0;
  float weight = 0, sum_of_chosen = 0;
  for (int i = 0; i < args.k; ++i) {
    float likelihood;
    const int chosen = take_largest(likelihoods, args.E, lane, &likelihood);
    if (args.are_sigmoids) likelihood = 1.0f / (1.0f + expf(-logits[chosen]));
    sum_of_chosen += likelihood;
    if (lane == i) {
      expert = chosen;
      weight = likelihood;
    }
  }
  int place = 0;  // by number
  for (int i = 0; i < args.k; ++i) place += __shfl_sync(kAllLanes, expert, i) < expert;
  if (lane >= args.k) return;
  if (args.are_weights_normed) weight /= sum_of_chosen;
  args.experts[token * args.k + place] = expert;
  args.weights[token * args.k + place] = weight * args.scale;
}

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarp;

/// One block of threads per expert; each warp goes over a range of the pairs twice. First it
/// counts, so that the block knows where each warp's pairs begin; then it writes them in order.
__global__ void __launch_bounds__(kSortThreads)
    sort_by_expert(const __grid_constant__ SortByExpertArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int expert = static_cast<int>(blockIdx.x);
  const int count = args.T * args.k;
  const int per_warp = (count + kSortThreads - 1) / kSortThreads * kWarp;
  const int begin = warp * per_warp < count ? warp * per_warp : count;
  const int end = begin + per_warp < count ? begin + per_warp : count;

  int lower = 0, equal = 0;
  for (int i = begin + lane; i < end; i += kWarp) {
    lower += args.experts[i] < expert;
    equal += args.experts[i] == expert;
  }
  const auto add = [](int a, int b) { return a + b; };
  lower = warp_reduce(lower, add);
  equal = warp_reduce(equal, add);
  auto* const counts = reinterpret_cast<int*>(shared_memory());  // [warp][lower, equal]
  if (lane == 0) {
    counts[2 * warp] = lower;
    counts[2 * warp + 1] = equal;
  }
  __syncthreads();
  int first = 0, place = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kSortWarps; ++i) {
    first += counts[2 * i];
    if (i < warp) place += counts[2 * i + 1];
    all += counts[2 * i + 1];
  }
  place += first;
  if (threadIdx.x == 0) {
    args.first[expert] = first;
    if (expert == args.E - 1) args.first[args.E] = first + all;
  }
  for (int from = begin; from < end; from += kWarp) {
    const int pair = from + lane;
    const bool is_mine = pair < end && args.experts[pair] == expert;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (is_mine) {
      const int at = place + __popc(mine & ((1u << lane) - 1));
      args.pairs[at] = pair;
      args.places[pair] = at;
    }
    place += __popc(mine);
  }
}

constexpr int kMixThreads = 256;
constexpr int kPack = 4;  ///< elements that one thread adds up

__global__ void __launch_bounds__(kMixThreads)
    mix_experts(const __grid_constant__ MixExpertsArgs args) {
  const int packs = args.width / kPack;
  const int blocks_per_row = (packs + kMixThreads - 1) / kMixThreads;
  const std::int64_t token = blockIdx.x / blocks_per_row;
  const int pack =
      static_cast<int>(blockIdx.x % blocks_per_row) * kMixThreads + static_cast<int>(threadIdx.x);
  if (pack >= packs) return;
  Values<kPack> sums = {};
  for (int i = 0; i < args.k; ++i) {
    const float weight = args.weights == nullptr ? 1.0f : args.weights[token * args.k + i];
    const std::int64_t place = args.places[token * args.k + i];
    const auto y = load_pack<kPack>(args.y, place * packs + pack, args.dtype);
#pragma unroll
    for (int e = 0; e < kPack; ++e) sums.of[e] = fmaf(weight, y.of[e], sums.of[e]);
  }
  if (args.adds_to_out) {
    const auto before = load_pack<Dtype::f32, kPack>(args.out, token * packs + pack);
#pragma unroll
    for (int e = 0; e < kPack; ++e) sums.of[e] += before.of[e];
  }
  store_pack<Dtype::f32>(args.out, token * packs + pack, sums);
}

/// The limits that choosing and sorting share.
Expected<void> check_experts(const char* kernel, std::int32_t T, std::int32_t E, std::int32_t k) {
  const std::string numbers = std::string(kernel) + ": " + std::to_string(T) + " tokens, " +
                              std::to_string(k) + " of " + std::to_string(E) + " experts";
  if (T < 0 || E <= 0 || k <= 0 || k > E) return failure(Errc::bad_argument, numbers);
  if (E > kMostExperts || k > kMostExpertsPerToken)
    return failure(Errc::unsupported, numbers + "; at most " +
                                          std::to_string(kMostExpertsPerToken) + " of " +
                                          std::to_string(kMostExperts) + " are supported");
  if (T > 0x7fffffff / k) return failure(Errc::unsupported, numbers + ": too many in one call");
  return {};
}

}  // namespace

Expected<void> choose_experts_cuda(const ChooseExpertsArgs& args, CudaStream stream) {
  if (auto ok = check_experts("choose experts", args.T, args.E, args.k); !ok) return ok;
  if (args.groups <= 0 || args.E % args.groups != 0 || args.chosen_groups <= 0 ||
      args.chosen_groups > args.groups || args.E / args.groups * args.chosen_groups < args.k)
    return failure(Errc::bad_argument, "choose experts: " + std::to_string(args.k) + " of " +
                                           std::to_string(args.E) + " experts, in " +
                                           std::to_string(args.chosen_groups) + " of " +
                                           std::to_string(args.groups) + " groups");
  if (args.T == 0) return {};
  return launch(choose_experts, dim3{static_cast<unsigned>((args.T - 1) / kChooseWarps + 1), 1, 1},
                dim3{kChooseThreads, 1, 1},
                static_cast<std::size_t>(kChooseWarps * (args.E + args.groups)) * sizeof(float),
                stream, args);
}

Expected<void> sort_by_expert_cuda(const SortByExpertArgs& args, CudaStream stream) {
  if (auto ok = check_experts("sort by expert", args.T, args.E, args.k); !ok) return ok;
  // Every expert's block reads all pairs, and their count is rounded up in 32 bits.
  constexpr std::int32_t kMostPairs = 1 << 24;
  if (args.T * args.k > kMostPairs)
    return failure(Errc::unsupported, "sort by expert: " + std::to_string(args.T) + " tokens, " +
                                          std::to_string(args.k) + " experts each; at most " +
                                          std::to_string(kMostPairs) + " pairs are supported");
  return launch(sort_by_expert, dim3{static_cast<unsigned>(args.E), 1, 1}, dim3{kSortThreads, 1, 1},
                2 * kSortWarps * sizeof(int), stream, args);
}

Expected<void> mix_experts_cuda(const MixExpertsArgs& args, CudaStream stream) {
  const std::string numbers = "mix experts: " + std::to_string(args.T) + " rows of " +
                              std::to_string(args.width) + ", " + std::to_string(args.k) +
                              " experts each";
  if (args.T < 0 || args.width <= 0 || args.k <= 0) return failure(Errc::bad_argument, numbers);
  if (bytes_of(args.dtype) == 1)
    return failure(Errc::unsupported, "mix experts: " + std::string(to_string(args.dtype)) +
                                          " is a type for the cache only");
  if (args.width % kPack != 0 ||
      reinterpret_cast<std::uintptr_t>(args.y) % (kPack * bytes_of(args.dtype)) != 0 ||
      reinterpret_cast<std::uintptr_t>(args.out) % (kPack * sizeof(float)) != 0)
    return failure(Errc::unsupported,
                   numbers + "; rows must be multiples of 4, aligned to four elements");
  const std::int32_t per_row = (args.width / kPack - 1) / kMixThreads + 1;
  if (args.T > 0x7fffffff / per_row)
    return failure(Errc::unsupported, numbers + ": too many in one call");
  if (args.T == 0) return {};
  return launch(mix_experts, dim3{static_cast<unsigned>(args.T * per_row), 1, 1},
                dim3{kMixThreads, 1, 1}, 0, stream, args);
}

}  // namespace kvhive
