// Products with weights of other types and in codes, as checkpoints have them, against the same
// products with weights of bf16. The two are measured alternately; the figure is the median of the
// pairs' ratios: how many times as fast.
//
// Usage: bench_weights [--brief] [--only TEXT]
//   (brief: small matrices, to see that it runs; TEXT: part of the cases' names)

#include <omp.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/memory/line_allocator.hpp"
#include "models/product/matmul.hpp"
#include "tools/bench/table.hpp"

namespace kvhive::bench {
namespace {

struct Sizes {
  std::int32_t N = 8192, K = 2048, count = 8, pairs = 7;
};

/// Random bytes; of numbers of the type, those which say how large they are make them about 0.02.
LineVector<std::byte> random_bytes(std::size_t count, Dtype dtype) {
  std::mt19937 random(1);
  LineVector<std::byte> bytes(count);
  const std::size_t size = bytes_of(dtype), period = std::min(count, std::size_t{1} << 20);
  const std::uint32_t large = dtype == Dtype::f16 ? 0x24 : 0x3c;
  for (std::size_t i = 0; i < period; ++i)
    bytes[i] = std::byte(size > 1 && i % size == size - 1 ? large | (random() & 0x80) : random());
  for (std::size_t at = period; at < count; at += period)
    std::copy_n(bytes.begin(), std::min(period, count - at), bytes.begin() + at);
  return bytes;
}

/// Several matrices of one shape, more than the caches hold, used one after the other.
class Products {
 public:
  Products(const Sizes& sizes) : sizes_(sizes) {}

  void add_plain(Dtype dtype) {
    const std::size_t each = std::size_t(sizes_.N) * sizes_.K * bytes_of(dtype);
    values_ = random_bytes(each * sizes_.count, dtype);
    for (std::int32_t i = 0; i < sizes_.count; ++i)
      all_.emplace_back(
          MatmulWeights{dtype, sizes_.N, sizes_.K, std::span(values_).subspan(each * i, each)},
          std::vector<float>{});
  }

  /// \param form  all but sizes, codes and scales
  void add_coded(CodedMatrix form, Dtype values) {
    form.N = sizes_.N;
    form.K = sizes_.K;
    if (form.grid.block_columns == 0) form.grid.block_columns = sizes_.K;
    form.grid.scales.assign(form.grid.down(form.N) * form.grid.across(form.K), 0.01f);
    if (!form.groups.empty())
      for (std::int32_t k = 1; k < sizes_.K; ++k)
        form.groups.push_back(k * 7 % form.grid.across(form.K));
    const std::size_t each = form.code_bytes();
    values_ = random_bytes(each * sizes_.count, Dtype::int8);
    for (std::int32_t i = 0; i < sizes_.count; ++i) {
      form.bytes = std::span(values_).subspan(each * i, each);
      all_.emplace_back(form, values, std::vector<float>{});
    }
  }

  void run(std::int32_t rows) {
    x_.resize(std::size_t(rows) * sizes_.K, 0.5f);
    y_.resize(std::size_t(rows) * sizes_.N);
    for (const Matmul& matmul : all_) matmul.apply(x_, y_);
  }

 private:
  Sizes sizes_;
  LineVector<std::byte> values_;
  std::vector<Matmul> all_;
  LineVector<float> x_, y_;
};

struct Form {
  const char* name;
  CodedMatrix matrix;
};

std::vector<Form> forms() {
  using enum CodeKind;
  using enum CodeOrder;
  const auto grouped = [](std::int32_t columns) { return ScaleGrid{1, columns, {}}; };
  return {
      {"pack-quantized, 4 bits by 128", {.kind = uint4, .grid = grouped(128), .zero = 8}},
      {"pack-quantized, 4 bits by 32", {.kind = uint4, .grid = grouped(32), .zero = 8}},
      {"gptq, 4 bits by 128", {.kind = uint4, .order = gptq, .grid = grouped(128), .zero = 8}},
      {"gptq, 4 bits, desc_act",
       {.kind = uint4, .order = gptq, .grid = grouped(128), .zero = 8, .groups = {0}}},
      {"awq, 4 bits by 128", {.kind = uint4, .order = awq, .grid = grouped(128), .zero = 8}},
      {"gptq, 8 bits by 128", {.kind = uint8, .order = gptq, .grid = grouped(128), .zero = 128}},
      {"int-quantized, by rows", {.kind = int8, .grid = grouped(0), .zero = 128}},
      {"fp8, by 128 x 128", {.kind = e4m3, .grid = {128, 128, {}}}}};
}

void compare(const Table& table, const Sizes& sizes, const std::string& name, Products& work,
             Products& narrow) {
  for (const std::int32_t rows : {1, 4, 16, 256})
    table.add(
        name + ", rows " + std::to_string(rows), sizes.pairs, [&] { work.run(rows); },
        [&] { narrow.run(rows); });
}

void measure(const Table& table, const Sizes& sizes) {
  Products narrow(sizes);
  narrow.add_plain(Dtype::bf16);
  for (const Dtype dtype : {Dtype::f16, Dtype::f32}) {
    Products plain(sizes);
    plain.add_plain(dtype);
    compare(table, sizes, std::string(to_string(dtype)), plain, narrow);
  }
  for (const Form& form : forms())
    for (const Dtype values : {Dtype::bf16, Dtype::f32}) {
      Products coded(sizes);
      coded.add_coded(form.matrix, values);
      compare(table, sizes, std::string(form.name) + (values == Dtype::f32 ? ", f32" : ""), coded,
              narrow);
    }
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive;
  bench::Sizes sizes;
  bench::Table table;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--brief") sizes = {256, 256, 2, 2};
    if (std::string(argv[i]) == "--only" && i + 1 < argc) table.only = argv[++i];
  }
  std::printf("8 products of 8,192 x 2,048; ms; the ratio is bf16's time over work\n");
  std::printf("%-44s %7s %10s %10s %7s\n", "work / yardstick", "threads", "work", "bf16", "ratio");
  const int all = omp_get_max_threads();
  for (const int threads : {1, all}) {
    omp_set_num_threads(threads);
    bench::measure(table, sizes);
    if (all == 1) break;
  }
}
