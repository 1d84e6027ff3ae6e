// How near the CPU kernels come to what memory allows. Every figure is a ratio of two things
// measured in turns in this run (A, B, A, B, ...; the median of the pairs' ratios), because
// absolute speeds on shared machines mean little.
//
//   decode        GB/s of KV by paged_attention_cpu, against reading the same pages in the same
//                 (shuffled) order with as many threads
//   decode fp8..  tokens of 8-bit KV per second by paged_attention_cpu, against those in bf16
//   block_copy    GB/s by block_copy_cpu, against one memcpy per block with as many threads
//   prefill       GFLOP/s per thread (no yardstick)
//
// Usage: bench_attention [--format json]

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "config/check.hpp"
#include "config/kv_layout.hpp"
#include "kernels/block_copy.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

constexpr int kPairs = 9;

/// One thread is timed by its own clock, which stands still while others have the core.
double now() {
  timespec time;
  ::clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Comparison {
  double rate;       ///< of the work, in units of `amount` per second
  double yardstick;  ///< same
  double ratio;      ///< median of rate/yardstick pair by pair
};

/// Both do `amount` of something each time.
Comparison compare(double amount, const std::function<void()>& work,
                   const std::function<void()>& yardstick) {
  work();
  yardstick();
  std::vector<double> work_seconds, yardstick_seconds, ratios;
  for (int i = 0; i < kPairs; ++i) {
    work_seconds.push_back(seconds_of(work));
    yardstick_seconds.push_back(seconds_of(yardstick));
    ratios.push_back(yardstick_seconds.back() / work_seconds.back());
  }
  return {amount / median(work_seconds), amount / median(yardstick_seconds), median(ratios)};
}

/// Memory of huge pages, every byte written once.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(memory != MAP_FAILED, bytes);
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
    // bf16 numbers between -1 and 1, cheap to make.
    auto* values = reinterpret_cast<std::uint16_t*>(data_);
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < bytes / sizeof *values; ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = bf16_of_float(static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f);
    }
  }
  ~Arena() { ::munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

using Line = std::uint64_t __attribute__((vector_size(64)));

/// Reads a page as fast as this CPU can, prefetching the next one.
__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t read_page(
    const std::byte* page, const std::byte* next, std::int64_t bytes) {
  Line sum{};
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(sizeof(Line))) {
    __builtin_prefetch(next + i);
    Line line;
    std::memcpy(&line, page + i, sizeof line);
    sum += line;
  }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/// A batch of sequences of one length, each with a few query tokens, over a pool of several layers:
/// more KV in all than the caches hold, the layers taken in turn as in a model.
class Batch {
 public:
  Batch(const Arena& arena, const KvLayout& layout, std::int32_t sequences, std::int32_t length,
        std::int32_t q_len, std::int32_t heads)
      : layout_(layout), length_(length), sequences_(sequences) {
    const std::int32_t blocks = (length + layout.block_size - 1) / layout.block_size;
    table_.resize(static_cast<std::size_t>(sequences) * blocks);
    std::iota(table_.begin(), table_.end(), 0u);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
    for (std::int32_t b = 0; b <= sequences; ++b) query_start_.push_back(b * q_len);
    kv_len_.assign(sequences, length);
    q_.assign(static_cast<std::size_t>(sequences) * q_len * heads * layout.head_size, 0.5f);
    out_.resize(q_.size());

    const auto element = static_cast<std::int64_t>(bytes_of(layout.dtype));
    args_.kv.k = arena.data();
    args_.kv.v = arena.data() + layout.plane_bytes();
    args_.kv.block_stride = static_cast<std::int64_t>(layout.block_bytes());
    args_.kv.token_stride = layout.head_size * element;
    args_.kv.head_stride = layout.block_size * args_.kv.token_stride;
    args_.kv.G = static_cast<std::int32_t>(layout.kv_heads);
    args_.kv.S = static_cast<std::int32_t>(layout.block_size);
    args_.kv.D = static_cast<std::int32_t>(layout.head_size);
    args_.kv.dtype = layout.dtype;
    args_.q = q_.data();
    args_.block_table = table_.data();
    args_.query_start = query_start_.data();
    args_.kv_len = kv_len_.data();
    args_.out = out_.data();
    args_.B = sequences;
    args_.H = heads;
    args_.M = blocks;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(layout.head_size));
  }

  /// Bytes of K and V of all sequences in all layers.
  double kv_bytes() const {
    return static_cast<double>(layout_.block_bytes()) / layout_.block_size * length_ * sequences_;
  }

  void attend() const {
    for (std::uint32_t layer = 0; layer < layout_.layers; ++layer)
      paged_attention_cpu(args_of(layer));
  }

  /// Reads the pages that attend() reads, in its order.
  void read() const {
    for (std::uint32_t layer = 0; layer < layout_.layers; ++layer) read_layer(args_of(layer).kv);
  }

 private:
  PagedAttentionArgs args_of(std::uint32_t layer) const {
    PagedAttentionArgs args = args_;
    args.kv.k += layer * layout_.layer_bytes();
    args.kv.v += layer * layout_.layer_bytes();
    return args;
  }

  void read_layer(const PagedKv& kv) const {
    // A row of the table is cut into pieces, so that one long sequence keeps all threads busy here,
    // too.
    constexpr std::int32_t kPieceBlocks = 32;
    const std::int32_t row_pieces = (args_.M + kPieceBlocks - 1) / kPieceBlocks;
    const std::int64_t pieces = std::int64_t{args_.B} * kv.G * row_pieces;
    std::uint64_t checksum = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : checksum)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t row = piece / row_pieces;
      const std::int32_t begin = static_cast<std::int32_t>(piece % row_pieces) * kPieceBlocks;
      const std::int32_t end = std::min(begin + kPieceBlocks, args_.M);
      const std::uint32_t* table = args_.block_table + row / kv.G * args_.M;
      const std::int64_t head = row % kv.G * kv.head_stride;
      for (std::int32_t m = begin; m < end; ++m) {
        const std::int64_t page = table[m] * kv.block_stride + head;
        const std::int64_t next = table[std::min(m + 1, end - 1)] * kv.block_stride + head;
        checksum += read_page(kv.k + page, kv.k + next, kv.head_stride);
        checksum += read_page(kv.v + page, kv.v + next, kv.head_stride);
      }
    }
    volatile std::uint64_t sink = checksum;
    static_cast<void>(sink);
  }

  KvLayout layout_;
  std::int32_t length_;
  std::int32_t sequences_;
  std::vector<std::uint32_t> table_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> kv_len_;
  std::vector<float> q_;
  std::vector<float> out_;
  PagedAttentionArgs args_;
};

nlohmann::json decode_case(const Arena& arena, std::int32_t sequences, std::int32_t length) {
  const KvLayout layout{4, 8, 128, 16, Dtype::bf16};
  const Batch batch(arena, layout, sequences, length, 1, 32);
  const Comparison result = compare(
      batch.kv_bytes() * 1e-9, [&] { batch.attend(); }, [&] { batch.read(); });
  return {{"case", "decode " + std::to_string(sequences) + " x " + std::to_string(length)},
          {"threads", omp_get_max_threads()},
          {"unit", "GB/s"},
          {"rate", result.rate},
          {"yardstick", result.yardstick},
          {"ratio", result.ratio}};
}

/// Against the same tokens in bf16.
nlohmann::json quantised_case(const Arena& arena, Dtype dtype) {
  constexpr std::int32_t kSequences = 8, kLength = 4096;
  const Batch batch(arena, {4, 8, 128, 16, dtype}, kSequences, kLength, 1, 32);
  const Batch wide(arena, {4, 8, 128, 16, Dtype::bf16}, kSequences, kLength, 1, 32);
  const Comparison result = compare(
      1e-6 * kSequences * kLength * 4, [&] { batch.attend(); }, [&] { wide.attend(); });
  return {{"case", "decode " + std::string(to_string(dtype))},
          {"threads", omp_get_max_threads()},
          {"unit", "M tokens of KV/s"},
          {"rate", result.rate},
          {"yardstick", result.yardstick},
          {"ratio", result.ratio}};
}

nlohmann::json prefill_case(const Arena& arena, std::int32_t length) {
  const KvLayout layout{1, 8, 64, 16, Dtype::bf16};
  constexpr std::int32_t kHeads = 32;
  const Batch batch(arena, layout, 1, length, length, kHeads);
  std::vector<double> seconds;
  seconds.reserve(kPairs);
  for (int i = 0; i < kPairs; ++i) seconds.push_back(seconds_of([&] { batch.attend(); }));
  const double flop = 2.0 * length * (length + 1) * layout.head_size * kHeads;
  return {{"case", "prefill " + std::to_string(length)},
          {"threads", omp_get_max_threads()},
          {"unit", "GFLOP/s per thread"},
          {"rate", flop * 1e-9 / median(seconds) / omp_get_max_threads()}};
}

nlohmann::json copy_case(const Arena& from, const Arena& to, std::size_t arena_bytes,
                         std::size_t block_bytes) {
  std::vector<std::uint32_t> blocks(arena_bytes / block_bytes);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::mt19937 random(1);
  std::vector<BlockPair> pairs;
  pairs.reserve(blocks.size());
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const std::uint32_t block : blocks) pairs.push_back({block, 0});
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (std::size_t i = 0; i < blocks.size(); ++i) pairs[i].destination = blocks[i];

  const BlockCopyArgs args = whole_blocks(from.data(), to.data(), block_bytes, pairs);
  const auto memcpy_blocks = [&] {
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < pairs.size(); ++i)
      std::memcpy(to.data() + pairs[i].destination * block_bytes,
                  from.data() + pairs[i].source * block_bytes, block_bytes);
  };
  const Comparison result = compare(
      static_cast<double>(arena_bytes) * 1e-9, [&] { block_copy_cpu(args); }, memcpy_blocks);
  return {{"case", "block_copy " + std::to_string(block_bytes / 1024) + " KiB"},
          {"threads", omp_get_max_threads()},
          {"unit", "GB/s"},
          {"rate", result.rate},
          {"yardstick", result.yardstick},
          {"ratio", result.ratio}};
}

nlohmann::json run_all() {
  constexpr std::size_t kArenaBytes = std::size_t{512} << 20;  // 4 layers of 32768 tokens
  const Arena arena(kArenaBytes);
  const Arena other(kArenaBytes);
  std::vector<int> thread_counts{1};
  if (omp_get_max_threads() > 1) thread_counts.push_back(omp_get_max_threads());
  nlohmann::json rows = nlohmann::json::array();
  for (const int threads : thread_counts) {
    omp_set_num_threads(threads);
    rows.push_back(decode_case(arena, 8, 4096));
    rows.push_back(decode_case(arena, 1, 32768));
    for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
      rows.push_back(quantised_case(arena, dtype));
    rows.push_back(prefill_case(arena, 2048));
    for (const std::size_t block_bytes : {32u << 10, 512u << 10, 2048u << 10})
      rows.push_back(copy_case(arena, other, kArenaBytes, block_bytes));
  }
  return rows;
}

void print_table(const nlohmann::json& rows) {
  std::printf("%-22s %7s %10s %10s %6s\n", "case", "threads", "rate", "yardstick", "ratio");
  for (const nlohmann::json& row : rows) {
    std::printf("%-22s %7d %10.1f", row["case"].get<std::string>().c_str(),
                row["threads"].get<int>(), row["rate"].get<double>());
    if (row.contains("ratio"))
      std::printf(" %10.1f %6.2f", row["yardstick"].get<double>(), row["ratio"].get<double>());
    std::printf("  %s\n", row["unit"].get<std::string>().c_str());
  }
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  const bool wants_json =
      argc == 3 && std::string_view(argv[1]) == "--format" && std::string_view(argv[2]) == "json";
  if (argc != 1 && !wants_json) {
    std::fprintf(stderr, "usage: %s [--format json]\n", argv[0]);
    return 2;
  }
  const nlohmann::json rows = kvhive::run_all();
  if (wants_json)
    std::printf("%s\n", rows.dump(2).c_str());
  else
    kvhive::print_table(rows);
}
