// Compares the CPU kernels with the machine's limits. Every figure is a ratio of two things that
// are measured alternately in this run (A, B, A, B, ...; the median of the pairs' ratios), because
// absolute speeds on shared machines mean little.
//
//   decode        GB/s of KV by paged_attention_cpu, against the best of several ways to read the
//                 same shuffled blocks with as many threads
//   decode fp8..  tokens of 8-bit KV per second by paged_attention_cpu, against those in bf16
//   prefill       GFLOP/s, against a register-blocked loop of bf16 dot products (where the CPU has
//                 them) on numbers that stay in the L1 cache
//   block_copy    GB/s by block_copy_cpu of shuffled blocks, against the best of several ways to
//                 copy as much in order with as many threads
//   cache_write   the same, by cache_write_cpu into bf16; half the bytes read and written
//
// Usage: bench_attention [--only TEXT] [--format json] [--copy-way NAME] [--write-way NAME]
//                        [--dot-way NAME]
//
// TEXT is a part of the cases' names. The ways are those of kernels/copy_way.hpp and dot_way.hpp;
// without a name the kernels measure and choose. The table ends with their choice.

#include <immintrin.h>
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
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "config/choices.hpp"
#include "config/kv_layout.hpp"
#include "kernels/block_copy.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/copy_way.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

constexpr int kPairs = 9;

/// Seconds. One thread is timed by its CPU time, which does not include the time that other
/// processes use the core; several threads are timed by a monotonic clock.
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
  double rate;       ///< rate of the work, in units of `amount` per second
  double yardstick;  ///< rate of the fastest yardstick
  double ratio;      ///< median over the rounds of rate / yardstick
};

using Work = std::function<void()>;

/// Runs the work and the yardsticks alternately; each run does `amount` of something. The work is
/// compared with the fastest yardstick.
Comparison compare(double amount, const Work& work, const std::vector<Work>& yardsticks) {
  std::vector<double> work_seconds;
  std::vector<std::vector<double>> seconds(yardsticks.size()), ratios(yardsticks.size());
  for (int round = -1; round < kPairs; ++round) {
    const double mine = seconds_of(work);
    if (round >= 0) work_seconds.push_back(mine);
    for (std::size_t i = 0; i < yardsticks.size(); ++i) {
      const double its = seconds_of(yardsticks[i]);
      if (round < 0) continue;  // warms up
      seconds[i].push_back(its);
      ratios[i].push_back(its / mine);
    }
  }
  Comparison worst{amount / median(work_seconds), 0, 1e9};
  for (std::size_t i = 0; i < yardsticks.size(); ++i)
    if (median(ratios[i]) < worst.ratio) {
      worst.ratio = median(ratios[i]);
      worst.yardstick = amount / median(seconds[i]);
    }
  return worst;
}

class Table {
 public:
  /// \param only  runs only the cases whose names contain this text; empty = all
  explicit Table(std::string only) : only_(std::move(only)) {}

  void add(const std::string& name, const std::string& unit, double amount, const Work& work,
           const std::vector<Work>& yardsticks) {
    if (name.find(only_) == std::string::npos) return;
    const Comparison result = compare(amount, work, yardsticks);
    rows_.push_back({{"case", name},
                     {"threads", omp_get_max_threads()},
                     {"unit", unit},
                     {"rate", result.rate},
                     {"yardstick", result.yardstick},
                     {"ratio", result.ratio}});
  }

  const nlohmann::json& rows() const { return rows_; }

 private:
  std::string only_;
  nlohmann::json rows_ = nlohmann::json::array();
};

/// Memory in huge pages. Every byte has been written once.
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

bool has_dot_products() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

/// A loop with 4 x 4 accumulators whose operands are in the L1 cache, like the innermost loop of a
/// product of bf16 matrices.
__attribute__((target("avx512f,avx512bf16"))) void dot_product_loop(std::int64_t steps) {
  alignas(64) static const Line lines[64] = {};
  __m512 sums[4][4] = {};
  for (std::int64_t step = 0; step < steps; ++step) {
    __m512bh columns[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) columns[j] = (__m512bh)_mm512_load_si512(&lines[step % 8 * 4 + j]);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const auto row =
          (__m512bh)_mm512_set1_epi32(reinterpret_cast<const int*>(&lines[32])[step % 8 * 4 + r]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], columns[j], row);
    }
  }
  volatile __m512 sink;
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sink = sums[r][j];
  static_cast<void>(sink);
}

void dot_products(double flop) {
  const auto steps = static_cast<std::int64_t>(flop / (16 * 64) / omp_get_max_threads());
#pragma omp parallel
  dot_product_loop(steps);
}

/// How the blocks of one layer are read.
struct ReadPattern {
  std::int32_t streams;  ///< blocks that are read at the same time
  std::int64_t ahead;    ///< bytes to prefetch ahead; 0 = no prefetch
};
constexpr ReadPattern kReadPatterns[] = {{1, 0}, {1, 2048}, {2, 0},   {2, 1024},
                                         {4, 0}, {4, 1024}, {8, 1024}};

__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t read_streams(
    const std::byte* const* streams, std::int32_t count, std::int64_t bytes, std::int64_t ahead) {
  constexpr std::int64_t kStep = 2 * sizeof(Line);
  Line even{}, odd{};
  for (std::int64_t i = 0; i < bytes; i += kStep)
    for (std::int32_t s = 0; s < count; ++s) {
      const std::byte* at = streams[s] + i;
      if (ahead != 0) {
        __builtin_prefetch(at + ahead);
        __builtin_prefetch(at + ahead + sizeof(Line));
      }
      Line lines[2];
      std::memcpy(lines, at, sizeof lines);
      even += lines[0];
      odd += lines[1];
    }
  even += odd;
  return even[0] + even[1] + even[2] + even[3] + even[4] + even[5] + even[6] + even[7];
}

/// A view of one layer of blocks, head by head, without addresses yet.
PagedKv plain_view(const KvLayout& layout, PageLayout page_layout) {
  PagedKv kv;
  kv.block_stride = static_cast<std::int64_t>(layout.block_bytes());
  kv.token_stride = layout.head_size * static_cast<std::int64_t>(bytes_of(layout.dtype));
  kv.head_stride = layout.block_size * kv.token_stride;
  kv.G = static_cast<std::int32_t>(layout.kv_heads);
  kv.S = static_cast<std::int32_t>(layout.block_size);
  kv.D = static_cast<std::int32_t>(layout.head_size);
  kv.dtype = layout.dtype;
  kv.layout = page_layout;
  return kv;
}

/// A batch of sequences of equal length, each with a few query tokens, over a pool of several
/// layers. There is more KV than the caches hold, and the layers are used one after the other, as
/// in a model.
class Batch {
 public:
  Batch(const Arena& arena, const KvLayout& layout, PageLayout page_layout, std::int32_t sequences,
        std::int32_t length, std::int32_t q_len, std::int32_t heads)
      : layout_(layout), length_(length), sequences_(sequences) {
    const std::int32_t blocks = (length + layout.block_size - 1) / layout.block_size;
    for (std::int32_t i = 0; i < sequences * blocks; ++i)
      table_.push_back(BlockId{static_cast<std::uint32_t>(i)});
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
    for (std::int32_t b = 0; b <= sequences; ++b) query_start_.push_back(b * q_len);
    kv_len_.assign(sequences, length);
    q_.assign(static_cast<std::size_t>(sequences) * q_len * heads * layout.head_size, 0.5f);
    out_.resize(q_.size());

    args_.kv = plain_view(layout, page_layout);
    args_.kv.k = arena.data();
    args_.kv.v = arena.data() + layout.plane_bytes();
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

  /// Reads the blocks that attend() reads.
  void read(ReadPattern pattern) const {
    for (std::uint32_t layer = 0; layer < layout_.layers; ++layer)
      read_layer(args_of(layer).kv.k, pattern);
  }

 private:
  PagedAttentionArgs args_of(std::uint32_t layer) const {
    PagedAttentionArgs args = args_;
    args.kv.k += layer * layout_.layer_bytes();
    args.kv.v += layer * layout_.layer_bytes();
    return args;
  }

  void read_layer(const std::byte* first_block, ReadPattern pattern) const {
    const auto pieces = static_cast<std::int64_t>(table_.size()) / pattern.streams;
    const auto block_bytes = static_cast<std::int64_t>(layout_.block_bytes());
    const auto bytes = static_cast<std::int64_t>(layout_.layer_bytes());
    std::uint64_t checksum = 0;
#pragma omp parallel for schedule(static) reduction(+ : checksum)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::byte* streams[8];
      for (std::int32_t s = 0; s < pattern.streams; ++s)
        streams[s] = first_block + table_[piece * pattern.streams + s].value * block_bytes;
      checksum += read_streams(streams, pattern.streams, bytes, pattern.ahead);
    }
    volatile std::uint64_t sink = checksum;
    static_cast<void>(sink);
  }

  KvLayout layout_;
  std::int32_t length_;
  std::int32_t sequences_;
  std::vector<BlockId> table_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> kv_len_;
  std::vector<float> q_;
  std::vector<float> out_;
  PagedAttentionArgs args_;
};

std::string name_of(PageLayout layout) { return layout == PageLayout::packed ? "packed" : "rows"; }

void add_decode(Table& table, const Arena& arena, PageLayout page_layout, std::int32_t sequences,
                std::int32_t length) {
  const KvLayout layout{4, 8, 128, 16, Dtype::bf16};
  const Batch batch(arena, layout, page_layout, sequences, length, 1, 32);
  std::vector<Work> reads;
  for (const ReadPattern pattern : kReadPatterns)
    reads.push_back([&batch, pattern] { batch.read(pattern); });
  table.add(
      "decode " + name_of(page_layout) + " " + std::to_string(sequences) + " x " +
          std::to_string(length),
      "GB/s", batch.kv_bytes() * 1e-9, [&] { batch.attend(); }, reads);
}

/// Compares attention over quantised KV with attention over the same number of tokens in bf16.
void add_quantised(Table& table, const Arena& arena, PageLayout page_layout, Dtype dtype) {
  constexpr std::int32_t kSequences = 8, kLength = 4096;
  const Batch batch(arena, {4, 8, 128, 16, dtype}, page_layout, kSequences, kLength, 1, 32);
  const Batch wide(arena, {4, 8, 128, 16, Dtype::bf16}, page_layout, kSequences, kLength, 1, 32);
  table.add("decode " + name_of(page_layout) + " " + std::string(to_string(dtype)),
            "M tokens of KV/s", 1e-6 * kSequences * kLength * 4, [&] { batch.attend(); },
            {[&] { wide.attend(); }});
}

void add_prefill(Table& table, const Arena& arena, PageLayout page_layout, std::int32_t length,
                 std::uint32_t head_size) {
  const KvLayout layout{1, 8, head_size, 16, Dtype::bf16};
  constexpr std::int32_t kHeads = 32;
  const Batch batch(arena, layout, page_layout, 1, length, length, kHeads);
  const double flop = 2.0 * length * (length + 1) * head_size * kHeads;
  std::vector<Work> products;
  if (has_dot_products()) products.push_back([flop] { dot_products(flop); });
  table.add(
      "prefill " + name_of(page_layout) + " " + std::to_string(length) + ", D " +
          std::to_string(head_size),
      "GFLOP/s", flop * 1e-9, [&] { batch.attend(); }, products);
}

// ---- copies ----

/// Copies `bytes` (a multiple of 16 KiB) with stores that bypass the caches, kPages pages of 4 KiB
/// at a time.
template <int kPages>
__attribute__((target("avx512f"))) void stream_copy(std::byte* to, const std::byte* from,
                                                    std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t first = 0; first < bytes; first += kPages * kPage)
    for (std::size_t line = first; line < first + kPage; line += 64)
      for (std::size_t page = 0; page < kPages * kPage; page += kPage) {
        __builtin_prefetch(from + line + page + 512);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + line + page),
                            _mm512_loadu_si512(from + line + page));
      }
  _mm_sfence();
}

void string_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void plain_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

using Copy = void (*)(std::byte*, const std::byte*, std::size_t);

/// Several ways to copy a whole arena in order, in pieces of several sizes.
std::vector<Work> arena_copies(const Arena& from, const Arena& to, std::size_t arena_bytes) {
  std::vector<Copy> copies{plain_copy, string_copy};
  if (has_dot_products()) copies.insert(copies.end(), {stream_copy<1>, stream_copy<4>});
  std::vector<Work> works;
  for (const Copy copy : copies)
    for (const std::size_t piece : {32u << 10, 2048u << 10, 32768u << 10})
      works.push_back([&from, &to, arena_bytes, copy, piece] {
#pragma omp parallel for schedule(static)
        for (std::size_t at = 0; at < arena_bytes; at += piece)
          copy(to.data() + at, from.data() + at, piece);
      });
  return works;
}

void add_copy(Table& table, const Arena& from, const Arena& to, std::size_t arena_bytes,
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
  table.add(
      "block_copy " + std::to_string(block_bytes / 1024) + " KiB", "GB/s",
      static_cast<double>(arena_bytes) * 1e-9, [&] { block_copy_cpu(args); },
      arena_copies(from, to, arena_bytes));
}

/// Writes the K and V of 4096 tokens at a time, with 8 heads of size 128, into shuffled blocks.
void add_write(Table& table, const Arena& from, const Arena& to, std::size_t arena_bytes,
               PageLayout page_layout, Dtype in_dtype) {
  constexpr std::int32_t kTokens = 4096;
  const KvLayout layout{1, 8, 128, 16, Dtype::bf16};
  const std::size_t step_bytes = layout.block_bytes() / layout.block_size * kTokens;
  const std::size_t in_bytes = step_bytes / 2 * bytes_of(in_dtype);
  std::vector<std::int64_t> slots;
  std::vector<std::uint32_t> blocks(kTokens / layout.block_size);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (const std::int64_t block : blocks)
    for (std::uint32_t slot = 0; slot < layout.block_size; ++slot)
      slots.push_back(block * layout.block_size + slot);

  CacheWriteArgs args;
  args.slot_mapping = slots.data();
  args.T = kTokens;
  args.in_dtype = in_dtype;
  args.kv = plain_view(layout, page_layout);
  const auto write = [&] {
    for (std::size_t step = 0; (step + 1) * in_bytes <= arena_bytes; ++step) {
      args.k = from.data() + step * in_bytes;
      args.v = from.data() + step * in_bytes + in_bytes / 2;
      args.kv.k = to.data() + step * step_bytes;
      args.kv.v = args.kv.k + layout.plane_bytes();
      cache_write_cpu(args);
    }
  };
  // Bytes read and written, as many as a copy of the arena has if none change their size.
  const double moved = static_cast<double>(arena_bytes / in_bytes * (in_bytes + step_bytes)) / 2;
  std::vector<Work> copies = arena_copies(from, to, static_cast<std::size_t>(moved));
  table.add("cache_write " + name_of(page_layout) + " of " + std::string(to_string(in_dtype)),
            "GB/s", moved * 1e-9, write, copies);
}

void run_all(Table& table) {
  constexpr std::size_t kArenaBytes = std::size_t{512} << 20;  // 4 layers of 32768 tokens
  const Arena arena(kArenaBytes);
  const Arena other(kArenaBytes);
  std::vector<int> thread_counts{1};
  if (omp_get_max_threads() > 1) thread_counts.push_back(omp_get_max_threads());
  for (const int threads : thread_counts) {
    omp_set_num_threads(threads);
    for (const PageLayout layout : {PageLayout::packed, PageLayout::rows}) {
      add_decode(table, arena, layout, 8, 4096);
      add_decode(table, arena, layout, 1, 32768);
      for (const std::uint32_t head_size : {64u, 128u})
        add_prefill(table, arena, layout, 2048, head_size);
    }
    for (const PageLayout layout : {PageLayout::packed, PageLayout::rows})
      for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
        add_quantised(table, arena, layout, dtype);
    for (const std::size_t block_bytes : {32u << 10, 512u << 10, 2048u << 10})
      add_copy(table, arena, other, kArenaBytes, block_bytes);
    for (const PageLayout layout : {PageLayout::packed, PageLayout::rows})
      for (const Dtype in : {Dtype::bf16, Dtype::f32})
        add_write(table, arena, other, kArenaBytes, layout, in);
  }
}

void print_table(const nlohmann::json& rows) {
  std::printf("%-28s %7s %10s %10s %6s\n", "case", "threads", "rate", "yardstick", "ratio");
  for (const nlohmann::json& row : rows) {
    std::printf("%-28s %7d %10.1f", row["case"].get<std::string>().c_str(),
                row["threads"].get<int>(), row["rate"].get<double>());
    if (row["yardstick"].get<double>() > 0)
      std::printf(" %10.1f %6.2f", row["yardstick"].get<double>(), row["ratio"].get<double>());
    std::printf("  %s\n", row["unit"].get<std::string>().c_str());
  }
}

template <class Way>
void print_way(const char* what, const ChosenWay<Way>& chosen, const char* unit) {
  const auto names = names_of(Way{});
  std::printf("%s: %s", what, std::string(to_string(chosen.way)).c_str());
  for (std::size_t i = 0; i < names.size() && chosen.rates[i] > 0; ++i)
    std::printf("%s %s %.1f %s", i == 0 ? " of" : ",", std::string(names[i]).c_str(),
                chosen.rates[i], unit);
  std::printf("\n");
}

/// Forces the way of that name. False if there is none.
template <class Way>
bool force(void (*force_way)(std::optional<Way>), std::string_view name) {
  const std::optional<Way> way = value_named<Way>(name);
  if (way) force_way(way);
  return way.has_value();
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  std::string only;
  bool wants_json = false, is_understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i], value = argv[i + 1];
    if (flag == "--only")
      only = value;
    else if (flag == "--format" && value == "json")
      wants_json = true;
    else if (flag == "--copy-way" && kvhive::force(kvhive::force_copy_way, value))
      continue;
    else if (flag == "--dot-way" && kvhive::force(kvhive::force_dot_way, value))
      continue;
    else if (flag == "--write-way" && kvhive::force(kvhive::force_write_way, value))
      continue;
    else
      is_understood = false;
  }
  if (!is_understood) {
    std::fprintf(stderr,
                 "usage: %s [--only TEXT] [--format json] [--copy-way NAME] [--write-way NAME] "
                 "[--dot-way NAME]\n",
                 argv[0]);
    return 2;
  }
  kvhive::Table table(only);
  kvhive::run_all(table);
  if (wants_json) {
    std::printf("%s\n", table.rows().dump(2).c_str());
  } else {
    kvhive::print_table(table.rows());
    kvhive::print_way("block_copy", kvhive::copy_way(), "GB/s");
    kvhive::print_way("cache_write", kvhive::write_way(), "GB/s");
    kvhive::print_way("dot product", kvhive::dot_way(), "a ns");
  }
}
