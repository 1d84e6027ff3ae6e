#include "tools/bench/onednn_product.hpp"

#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

namespace kvhive::bench {
namespace {

constexpr std::int32_t kSlab = 256;

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// A product of fixed sizes, made for so many threads.
class Primitive {
 public:
  Primitive(std::int32_t rows, std::int32_t N, std::int32_t K, Dtype dtype, int threads) {
    using Layout = dnnl::memory::format_tag;
    using Type = dnnl::memory::data_type;
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const Type type = dtype == Dtype::bf16 ? Type::bf16 : Type::f32;
    x_ = {{rows, K}, type, Layout::ab};
    w_ = {{K, N}, type, Layout::ba};
    y_ = {{rows, N}, Type::f32, Layout::ab};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc description({x_, w_, y_}, attributes, cpu());
    scratchpad_ = description.scratchpad_desc();
    matmul_ = dnnl::matmul(description);
    omp_set_num_threads(before);
  }

  void run(const std::byte* x, const std::byte* w, float* y) const {
    thread_local dnnl::stream stream(cpu());
    thread_local std::vector<std::byte> scratch;
    if (scratch.size() < scratchpad_.get_size() + 64) scratch.resize(scratchpad_.get_size() + 64);
    void* aligned = scratch.data();
    std::size_t space = scratch.size();
    std::align(64, scratchpad_.get_size(), aligned, space);
    // oneDNN's handles are not const, though sources are only read.
    matmul_.execute(stream, {{DNNL_ARG_SRC, {x_, cpu(), const_cast<std::byte*>(x)}},
                             {DNNL_ARG_WEIGHTS, {w_, cpu(), const_cast<std::byte*>(w)}},
                             {DNNL_ARG_DST, {y_, cpu(), y}},
                             {DNNL_ARG_SCRATCHPAD, {scratchpad_, cpu(), aligned}}});
    stream.wait();
  }

 private:
  dnnl::memory::desc x_, w_, y_, scratchpad_;
  dnnl::matmul matmul_;
};

}  // namespace

struct OneDnnProduct::State {
  std::int32_t rows, N, K;
  std::int32_t tile = std::min(rows, kSlab), slab = std::min(N, kSlab);
  std::size_t row_bytes;  ///< of x and w
  Primitive whole, part;
};

OneDnnProduct::OneDnnProduct(std::int32_t rows, std::int32_t N, std::int32_t K, Dtype dtype)
    : state_(new State{.rows = rows,
                       .N = N,
                       .K = K,
                       .row_bytes = std::size_t(K) * bytes_of(dtype),
                       .whole = {rows, N, K, dtype, omp_get_max_threads()},
                       .part = {std::min(rows, kSlab), std::min(N, kSlab), K, dtype, 1}}) {}

OneDnnProduct::OneDnnProduct(OneDnnProduct&&) noexcept = default;
OneDnnProduct::~OneDnnProduct() = default;

void OneDnnProduct::run(const std::byte* x, const std::byte* w, float* y) {
  state_->whole.run(x, w, y);
}

void OneDnnProduct::run_in_slabs(const std::byte* x, const std::byte* w, float* y) {
  const State& s = *state_;
  const std::int32_t row_parts = s.rows / s.tile, parts = s.N / s.slab * row_parts;
#pragma omp parallel
  {
    // oneDNN asks OpenMP for the number of threads when it runs a primitive, too.
    omp_set_num_threads(1);
    thread_local std::vector<float> result;
    result.resize(std::size_t(s.tile) * s.slab);
#pragma omp for schedule(dynamic)
    for (std::int32_t i = 0; i < parts; ++i) {
      const std::int32_t column = i / row_parts * s.slab, row = i % row_parts * s.tile;
      s.part.run(x + std::size_t(row) * s.row_bytes, w + std::size_t(column) * s.row_bytes,
                 result.data());
      for (std::int32_t r = 0; r < s.tile; ++r)
        std::copy_n(&result[std::size_t(r) * s.slab], s.slab,
                    y + std::size_t(row + r) * s.N + column);
    }
  }
}

}  // namespace kvhive::bench
