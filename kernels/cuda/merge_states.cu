#include "kernels/merge_states.hpp"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr unsigned kThreads = 128;
constexpr unsigned kRows = kThreads / kWarp;  ///< rows of a block of threads, one per warp

__global__ void __launch_bounds__(kThreads)
    merge(const __grid_constant__ MergeStatesArgs args, std::int64_t rows) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const float a_lse = args.a_lse[row], b_lse = args.b_lse[row];
  const float max = fmaxf(a_lse, b_lse);
  // A part that has seen no token may hold NaN: skip it, do not multiply it by 0.
  const bool has_a = a_lse > -kInfinity, has_b = b_lse > -kInfinity;
  const float a_weight = has_a ? expf(a_lse - max) : 0.0f;
  const float b_weight = has_b ? expf(b_lse - max) : 0.0f;
  const float sum = a_weight + b_weight;
  const float a_share = has_a ? a_weight / sum : 0.0f, b_share = has_b ? b_weight / sum : 0.0f;
  // lse may be the same memory as a_lse or b_lse: all lanes must have read before one writes.
  __syncwarp();
  for (std::int64_t i = row * args.D + lane; i < (row + 1) * args.D; i += kWarp) {
    float value = 0;
    if (has_a) value += a_share * load_value(args.a, i, args.dtype);
    if (has_b) value += b_share * load_value(args.b, i, args.dtype);
    store_value(args.out, i, args.dtype, value);
  }
  if (lane == 0 && args.lse != nullptr) args.lse[row] = sum > 0 ? max + logf(sum) : -kInfinity;
}

}  // namespace

Expected<void> merge_states_cuda(const MergeStatesArgs& args, CudaStream stream) {
  if (bytes_of(args.dtype) == 1)
    return failure(Errc::unsupported, "merge states: " + std::string(to_string(args.dtype)) +
                                          " is a type for the cache only");
  const std::int64_t rows = std::int64_t{args.T} * args.H;
  if (rows == 0) return {};
  return launch(merge, dim3{static_cast<unsigned>((rows + kRows - 1) / kRows), 1, 1},
                dim3{kThreads, 1, 1}, 0, stream, args, rows);
}

}  // namespace kvhive
