// What this GPU's memory and its link to the host can do: the yardsticks for kernels measured in
// the same run. Prints one JSON object; a GB is 10^9 bytes.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 30;  // many times any L2
constexpr int kRounds = 9;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check((call), #call)

/// Adds up all values, with kInFlight loads of 16 bytes in flight in each thread.
constexpr int kInFlight = 8;

__device__ unsigned sum_of(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

/// `count` is a multiple of kInFlight * stride.
__device__ unsigned read_span(const uint4* from, std::size_t count, std::size_t first,
                              std::size_t stride) {
  unsigned sum = 0;
  for (std::size_t i = first; i < count; i += kInFlight * stride) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) loaded[k] = __ldcs(from + i + k * stride);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum ^= sum_of(loaded[k]);
  }
  return sum;
}

/// Each block of threads reads one span after the other.
constexpr unsigned kThreads = 256;
constexpr unsigned kSpan = 2 * kInFlight * kThreads;  ///< 64 KiB, in uint4

__global__ void read_all(const uint4* from, std::size_t count, unsigned* out) {
  unsigned sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * kSpan; i < count;
       i += std::size_t{gridDim.x} * kSpan)
    sum ^= read_span(from + i, kSpan, threadIdx.x, kThreads);
  if (sum == 0x9e3779b9u) *out = sum;
}

/// The same spans in the order of `pages`, as a paged kernel reads them.
__global__ void read_pages(const uint4* from, const unsigned* pages, unsigned count,
                           unsigned* out) {
  unsigned sum = 0;
  for (unsigned i = blockIdx.x; i < count; i += gridDim.x)
    sum ^= read_span(from + std::size_t{pages[i]} * kSpan, kSpan, threadIdx.x, kThreads);
  if (sum == 0x9e3779b9u) *out = sum;
}

/// Median time of one call in seconds.
double seconds_of(const std::function<void()>& work) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int round = -2; round < kRounds; ++round) {
    CHECK(cudaEventRecord(begin));
    work();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaGetLastError());
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= 0) seconds.push_back(milliseconds / 1e3);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

double gb_per_second(std::size_t bytes, const std::function<void()>& work) {
  return static_cast<double>(bytes) / seconds_of(work) / 1e9;
}

}  // namespace

int main() {
  cudaDeviceProp device{};
  CHECK(cudaGetDeviceProperties(&device, 0));
  std::byte *a = nullptr, *b = nullptr;
  unsigned* out = nullptr;
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaMalloc(&b, kBytes));
  CHECK(cudaMalloc(&out, sizeof *out));
  CHECK(cudaMemset(a, 1, kBytes));
  const int blocks = device.multiProcessorCount * 8;

  const double copy = gb_per_second(
      2 * kBytes, [&] { CHECK(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice)); });
  const double read = gb_per_second(kBytes, [&] {
    read_all<<<blocks, kThreads>>>(reinterpret_cast<const uint4*>(a), kBytes / 16, out);
  });

  // A page: K and V of one layer of a block of 16 tokens, 8 heads of 128, bf16.
  constexpr std::size_t kPage = kSpan * sizeof(uint4);
  std::vector<unsigned> order(kBytes / kPage);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  unsigned* pages = nullptr;
  CHECK(cudaMalloc(&pages, order.size() * sizeof order[0]));
  CHECK(cudaMemcpy(pages, order.data(), order.size() * sizeof order[0], cudaMemcpyHostToDevice));
  const double gather = gb_per_second(kBytes, [&] {
    read_pages<<<blocks, kThreads>>>(reinterpret_cast<const uint4*>(a), pages,
                                     static_cast<unsigned>(order.size()), out);
  });

  constexpr std::size_t kLinkBytes = std::size_t{1} << 30;
  std::byte *host_in = nullptr, *host_out = nullptr;
  CHECK(cudaMallocHost(&host_in, kLinkBytes));
  CHECK(cudaMallocHost(&host_out, kLinkBytes));
  cudaStream_t up, down;
  CHECK(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&down, cudaStreamNonBlocking));
  const auto to_device = [&](cudaStream_t stream) {
    CHECK(cudaMemcpyAsync(a, host_in, kLinkBytes, cudaMemcpyHostToDevice, stream));
  };
  const auto to_host = [&](cudaStream_t stream) {
    CHECK(cudaMemcpyAsync(host_out, b, kLinkBytes, cudaMemcpyDeviceToHost, stream));
  };
  const double h2d = gb_per_second(kLinkBytes, [&] { to_device(nullptr); });
  const double d2h = gb_per_second(kLinkBytes, [&] { to_host(nullptr); });
  // Copies in both directions at once. The events are on the default stream, which waits for both.
  cudaEvent_t start, up_done, down_done;
  for (cudaEvent_t* event : {&start, &up_done, &down_done})
    CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  const double duplex = gb_per_second(2 * kLinkBytes, [&] {
    CHECK(cudaEventRecord(start));
    CHECK(cudaStreamWaitEvent(up, start));
    CHECK(cudaStreamWaitEvent(down, start));
    to_device(up);
    to_host(down);
    CHECK(cudaEventRecord(up_done, up));
    CHECK(cudaEventRecord(down_done, down));
    CHECK(cudaStreamWaitEvent(nullptr, up_done));
    CHECK(cudaStreamWaitEvent(nullptr, down_done));
  });

  std::printf(
      "{\"device\": \"%s\", \"multiprocessors\": %d, \"l2_bytes\": %d, \"copy_gb_s\": %.1f, "
      "\"read_gb_s\": %.1f, \"page_gather_gb_s\": %.1f, \"h2d_gb_s\": %.2f, \"d2h_gb_s\": %.2f, "
      "\"duplex_gb_s\": %.2f}\n",
      device.name, device.multiProcessorCount, device.l2CacheSize, copy, read, gather, h2d, d2h,
      duplex);
  return 0;
}
