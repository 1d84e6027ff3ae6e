// This project's kernels on the shapes that peers.py measures in the same run: decode over a grid
// of batches, a skewed batch, 8-bit KV, cache write, copy on write, and swap through mapped host
// memory. Prints one JSON object.
//
// bench_kernels [--decode-only] BxCTX [BxCTX ...]: sequences x tokens of each; 32/8 heads of 128,
// blocks of 16

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"

namespace kvhive {
namespace {

constexpr std::int32_t kHeads = 32, kKvHeads = 8, kHeadSize = 128, kBlock = 16;
constexpr int kRounds = 20;

[[noreturn]] void die(const char* what, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", what, why.c_str());
  std::exit(1);
}
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}
#define CHECK(call) check((call), #call)

/// An array in device memory, freed with the object.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    CHECK(cudaMalloc(&data_, std::max<std::size_t>(count, 1) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    CHECK(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// Fills memory with bytes below 0x40: small numbers in every dtype, no NaN.
__global__ void fill(unsigned* words, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    words[i] = static_cast<unsigned>(i * 2654435761u) & 0x3f3f3f3fu;
}

/// Fills memory with bf16 of ordinary size, of both signs. Dividing very small numbers takes a GPU
/// longer.
__global__ void fill_ordinary(unsigned* words, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    words[i] = (static_cast<unsigned>(i * 2654435761u) & 0x83ff83ffu) | 0x3c003c00u;
}

void fill_ordinary(const DeviceArray<std::byte>& bytes) {
  fill_ordinary<<<1024, 256>>>(reinterpret_cast<unsigned*>(bytes.data()), bytes.bytes() / 4);
  CHECK(cudaDeviceSynchronize());
}

void fill(const DeviceArray<std::byte>& bytes) {
  fill<<<1024, 256>>>(reinterpret_cast<unsigned*>(bytes.data()), bytes.bytes() / 4);
  CHECK(cudaDeviceSynchronize());
}

/// Median time of `work(round)` in microseconds.
double microseconds(const std::function<void(int)>& work, cudaStream_t stream = nullptr) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int round = -3; round < kRounds; ++round) {
    CHECK(cudaEventRecord(begin, stream));
    work(round + 3);
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaGetLastError());
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= 0) times.push_back(milliseconds * 1e3);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

std::size_t l2_bytes() {
  cudaDeviceProp device{};
  CHECK(cudaGetDeviceProperties(&device, 0));
  return static_cast<std::size_t>(device.l2CacheSize);
}

struct Timing {
  double us = 0;
  std::size_t bytes = 0;  ///< that have to be moved
};

std::string json(const Timing& timing) {
  char text[128];
  std::snprintf(text, sizeof text, "{\"us\": %.2f, \"bytes\": %zu, \"gb_s\": %.1f}", timing.us,
                timing.bytes, static_cast<double>(timing.bytes) / timing.us / 1e3);
  return text;
}

std::size_t plane_bytes(Dtype dtype) {
  return std::size_t{kKvHeads} * kBlock * kHeadSize * bytes_of(dtype);
}

/// One layer: blocks of K and V, one after the other. 8-bit elements have one scale, at `scale`.
PagedKv layer_of(std::byte* blocks, Dtype dtype, float* scale) {
  const auto row = static_cast<std::int64_t>(kHeadSize * bytes_of(dtype));
  const std::size_t plane = plane_bytes(dtype);
  PagedKv kv{.k = blocks,
             .v = blocks + plane,
             .block_stride = static_cast<std::int64_t>(2 * plane),
             .head_stride = kBlock * row,
             .token_stride = row,
             .G = kKvHeads,
             .S = kBlock,
             .D = kHeadSize,
             .dtype = dtype};
  if (bytes_of(dtype) == 1) kv.scales = {scale, scale};
  return kv;
}

/// A batch of sequences.
struct Batch {
  std::vector<std::int32_t> lengths;  ///< tokens of each sequence
  std::int32_t queries = 1;           ///< of each, its last
  std::int32_t common = 0;            ///< tokens in front, in the same blocks for all
  Dtype kv_dtype = Dtype::bf16;
  PlanLimits limits = {};
};

/// The block table of a batch, with blocks in random order.
struct Blocks {
  explicit Blocks(const Batch& batch) {
    const std::int32_t longest = *std::max_element(batch.lengths.begin(), batch.lengths.end());
    width = (longest + kBlock - 1) / kBlock;
    const std::int32_t common = batch.common / kBlock;
    count = static_cast<std::uint32_t>(common);
    table.assign(batch.lengths.size() * static_cast<std::size_t>(width), kNullBlock);
    for (std::size_t b = 0; b < batch.lengths.size(); ++b)
      for (std::int32_t i = 0; i < (batch.lengths[b] + kBlock - 1) / kBlock; ++i)
        table[b * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)] =
            BlockId{i < common ? static_cast<std::uint32_t>(i) : count++};
    std::vector<std::uint32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (BlockId& block : table) block = BlockId{ids[block.value]};
  }
  std::vector<BlockId> table;
  std::int32_t width = 0;
  std::uint32_t count = 0;
};

/// Attention over the layers in turn, so that no KV is in the L2. `bytes` counts the KV once.
Timing attention(const Batch& batch) {
  const auto sequences = static_cast<std::int32_t>(batch.lengths.size());
  const std::int32_t queries = sequences * batch.queries;
  const Blocks blocks(batch);
  const std::size_t element = bytes_of(batch.kv_dtype);
  const std::size_t plane = plane_bytes(batch.kv_dtype);
  const std::size_t layer_bytes = blocks.count * 2 * plane;
  const std::size_t layers = std::clamp<std::size_t>(4 * l2_bytes() / layer_bytes + 1, 1, 64);
  const DeviceArray<std::byte> arena(layers * layer_bytes);
  fill(arena);
  const DeviceArray<std::byte> q(static_cast<std::size_t>(queries) * kHeads * kHeadSize * 2);
  fill(q);
  const DeviceArray<std::byte> out(q.bytes());
  const DeviceArray<float> scale(std::vector<float>{1.0f});
  std::vector<std::int32_t> query_start(batch.lengths.size() + 1);
  for (std::size_t b = 0; b < query_start.size(); ++b)
    query_start[b] = static_cast<std::int32_t>(b) * batch.queries;

  PagedAttentionArgs args;
  args.q = q.data();
  args.out = out.data();
  args.q_dtype = Dtype::bf16;
  args.block_table = blocks.table.data();
  args.query_start = query_start.data();
  args.kv_len = batch.lengths.data();
  args.B = sequences;
  args.H = kHeads;
  args.M = blocks.width;
  args.scale = 0.088388348f;
  args.kv = layer_of(arena.data(), batch.kv_dtype, scale.data());

  const SplitPlan plan = plan_splits(args, batch.limits);
  const DeviceArray<AttentionSplit> splits(plan.splits);
  const DeviceArray<AttentionTile> tiles(plan.tiles);
  const DeviceArray<SplitQuery> merged(plan.merged);
  const DeviceArray<float> states(plan.state_floats(kHeads, kHeadSize));
  const AttentionWork work = plan.work(splits.data(), tiles.data(), merged.data(), states.data());
  const DeviceArray<BlockId> device_table(blocks.table);
  const DeviceArray<std::int32_t> device_start(query_start), device_lengths(batch.lengths);
  args.block_table = device_table.data();
  args.query_start = device_start.data();
  args.kv_len = device_lengths.data();
  const double us = microseconds([&](int round) {
    args.kv.k = arena.data() + static_cast<std::size_t>(round) % layers * layer_bytes;
    args.kv.v = args.kv.k + plane;
    const auto started = paged_attention_cuda(args, work, nullptr);
    if (!started) die("attention", started.error().text);
  });
  std::int64_t tokens = batch.common / kBlock * kBlock;
  for (const std::int32_t length : batch.lengths) tokens += length - batch.common / kBlock * kBlock;
  return {us, static_cast<std::size_t>(tokens) * 2 * kKvHeads * kHeadSize * element};
}

/// TFLOP/s of a causal prefill of the last `queries` of `tokens` tokens.
double prefill_tflops(std::int32_t tokens, std::int32_t queries) {
  const double us = attention({.lengths = {tokens}, .queries = queries}).us;
  const double pairs = static_cast<double>(queries) * (tokens - (queries - 1) / 2.0);
  return pairs * 4 * kHeads * kHeadSize / us / 1e6;
}

/// A decode step of `sequences` that share `common` tokens and have 128 of their own: with a plan
/// that shares the pass over these blocks, and with one that does not (its reads of the same blocks
/// may still meet in the L2).
std::string cascade(std::int32_t sequences, std::int32_t common) {
  Batch batch{
      .lengths = std::vector<std::int32_t>(static_cast<std::size_t>(sequences), common + 128),
      .common = common};
  const double shared = attention(batch).us;
  batch.limits.shared_tokens = common + 1;
  const double apart = attention(batch).us;
  char text[128];
  std::snprintf(text, sizeof text, "{\"shared_us\": %.1f, \"apart_us\": %.1f, \"gain\": %.2f}",
                shared, apart, apart / shared);
  return text;
}

Timing cache_write(std::int32_t tokens, Dtype kv_dtype) {
  const std::size_t element = bytes_of(kv_dtype);
  const std::size_t token_elements = std::size_t{kKvHeads} * kHeadSize;
  const std::size_t plane = plane_bytes(kv_dtype);
  const auto blocks = static_cast<std::size_t>((tokens + kBlock - 1) / kBlock) * 4;
  const DeviceArray<std::byte> arena(blocks * 2 * plane);
  const DeviceArray<std::byte> k(tokens * token_elements * 2), v(tokens * token_elements * 2);
  fill_ordinary(k);
  fill_ordinary(v);
  std::vector<std::int64_t> slots(blocks * kBlock);
  std::iota(slots.begin(), slots.end(), std::int64_t{0});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
  slots.resize(static_cast<std::size_t>(tokens));
  const DeviceArray<std::int64_t> mapping(slots);
  const DeviceArray<float> scale(std::vector<float>{1.0f});
  CacheWriteArgs args;
  args.k = k.data();
  args.v = v.data();
  args.slot_mapping = mapping.data();
  args.T = tokens;
  args.in_dtype = Dtype::bf16;
  args.kv = layer_of(arena.data(), kv_dtype, scale.data());
  const double us = microseconds([&](int) {
    const auto started = cache_write_cuda(args, nullptr);
    if (!started) die("cache write", started.error().text);
  });
  return {us, static_cast<std::size_t>(tokens) * token_elements * 2 * (2 + element)};
}

/// The batch-invariant product of an 8B model's down projection. `bytes` counts the weights.
Timing row_product(std::int32_t rows) {
  constexpr std::int32_t N = 4096, K = 14336;
  constexpr std::size_t kBytes = std::size_t{2} * N * K;
  // Use several copies of the weights in turn, so that none is in a cache.
  const std::size_t copies = 4 * l2_bytes() / kBytes + 1;
  const DeviceArray<std::byte> w(copies * kBytes);
  const DeviceArray<std::byte> x(static_cast<std::size_t>(rows) * K * 2);
  const DeviceArray<float> y(static_cast<std::size_t>(rows) * N);
  fill(w);
  fill(x);
  const double us = microseconds([&](int round) {
    const auto* weights = w.data() + static_cast<std::size_t>(round) % copies * kBytes;
    const auto started = row_product_cuda(
        {x.data(), weights, nullptr, y.data(), rows, N, K, Dtype::bf16, Dtype::f32}, nullptr);
    if (!started) die("row product", started.error().text);
  });
  return {us, kBytes};
}

double row_product_tflops(std::int32_t rows) {
  const Timing timing = row_product(rows);
  return static_cast<double>(timing.bytes) * rows / timing.us /
         1e6;  // two operations per weight of two bytes
}

/// Page-locked host memory that the device can read in place.
template <class T>
std::span<T> page_locked(std::size_t count) {
  T* memory = nullptr;
  CHECK(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped));  // never freed
  return {memory, count};
}

enum class By { kernel, batch };

/// Copies `bytes` of each block, with blocks `stride` bytes apart, in random order.
Timing copy_blocks(const std::byte* source, std::byte* destination, std::uint32_t blocks,
                   std::size_t bytes, std::size_t stride, std::size_t moved_per_byte, By by) {
  const std::span<BlockPair> pairs = page_locked<BlockPair>(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) pairs[i] = {i, i};
  std::shuffle(pairs.begin(), pairs.end(), std::mt19937(1));
  const BlockCopyArgs args{source, destination, bytes, stride, stride, pairs.data(), pairs.size()};
  static const cudaStream_t stream = [] {
    cudaStream_t made;  // copies on the default stream are not made as a batch
    CHECK(cudaStreamCreate(&made));
    return made;
  }();
  const double us = microseconds(
      [&](int) {
        const auto started = swap_blocks_cuda(args, by == By::batch ? 0 : bytes + 1, stream);
        if (!started) die("block copy", started.error().text);
      },
      stream);
  return {us, blocks * bytes * moved_per_byte};
}

void run(const std::vector<std::string>& shapes, bool is_decode_only) {
  std::printf("{\"decode\": {");
  const char* comma = "";
  for (const std::string& shape : shapes) {
    const std::size_t x = shape.find('x');
    if (x == std::string::npos) die(shape.c_str(), "want SEQUENCESxTOKENS");
    const std::vector<std::int32_t> lengths(std::stoul(shape.substr(0, x)),
                                            std::stoi(shape.substr(x + 1)));
    std::printf("%s\"%s\": {\"bf16\": %s, \"fp8\": %s, \"int8\": %s}", comma, shape.c_str(),
                json(attention({.lengths = lengths})).c_str(),
                json(attention({.lengths = lengths, .kv_dtype = Dtype::e4m3})).c_str(),
                json(attention({.lengths = lengths, .kv_dtype = Dtype::int8})).c_str());
    comma = ", ";
  }
  if (is_decode_only) {
    std::printf("}}\n");
    return;
  }
  std::vector<std::int32_t> skewed(64, 512);
  skewed[17] = 65536;
  std::printf("}, \"skewed_1x65536_63x512\": %s", json(attention({.lengths = skewed})).c_str());
  std::printf(", \"uniform_64x1528\": %s",
              json(attention({.lengths = std::vector<std::int32_t>(64, 1528)})).c_str());
  std::printf(", \"prefill_tflops\": {\"8192\": %.1f, \"512 of 32768\": %.1f}",
              prefill_tflops(8192, 8192), prefill_tflops(32768, 512));
  std::printf(", \"cascade\": {\"32 x 8192\": %s, \"32 x 32768\": %s, \"256 x 8192\": %s}",
              cascade(32, 8192).c_str(), cascade(32, 32768).c_str(), cascade(256, 8192).c_str());

  for (const std::int32_t tokens : {256, 8192})
    for (const Dtype dtype : {Dtype::bf16, Dtype::e4m3})
      std::printf(", \"cache_write_%d_%s\": %s", tokens, std::string(to_string(dtype)).c_str(),
                  json(cache_write(tokens, dtype)).c_str());

  for (const std::int32_t rows : {1, 8, 32})
    std::printf(", \"row_product_%d\": %s", rows, json(row_product(rows)).c_str());
  std::printf(", \"row_product_tflops\": {\"256\": %.1f, \"2048\": %.1f}", row_product_tflops(256),
              row_product_tflops(2048));

  constexpr std::uint32_t kBlocks = 256;
  constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
  const DeviceArray<std::byte> from(kBlocks * kBlockBytes), to(kBlocks * kBlockBytes);
  fill(from);
  std::printf(
      ", \"copy_on_write_256x2MiB\": %s",
      json(copy_blocks(from.data(), to.data(), kBlocks, kBlockBytes, kBlockBytes, 2, By::kernel))
          .c_str());
  std::byte* host = page_locked<std::byte>(kBlocks * kBlockBytes).data();
  for (const By by :
       {By::kernel, By::batch})  // the size at which both are equal is the best batched_from
    for (const std::size_t bytes : {std::size_t{8} << 10, std::size_t{16} << 10,
                                    std::size_t{32} << 10, std::size_t{64} << 10, kBlockBytes}) {
      const char* name = by == By::kernel ? "kernel" : "batch";
      std::printf(", \"swap_out_%zuKiB_%s\": %s", bytes >> 10, name,
                  json(copy_blocks(from.data(), host, kBlocks, bytes, kBlockBytes, 1, by)).c_str());
      std::printf(", \"swap_in_%zuKiB_%s\": %s", bytes >> 10, name,
                  json(copy_blocks(host, to.data(), kBlocks, bytes, kBlockBytes, 1, by)).c_str());
    }
  std::printf("}\n");
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  const bool is_decode_only = argc > 1 && std::string(argv[1]) == "--decode-only";
  kvhive::run({argv + 1 + is_decode_only, argv + argc}, is_decode_only);
}
