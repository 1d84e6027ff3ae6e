#include "models/product/matmul_shape.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <tuple>

namespace kvhive {
namespace {

using Layout = dnnl::memory::format_tag;

constexpr std::int32_t kReferenceTile = 16;
constexpr std::int32_t kLargestTile = 256;
/// The tiles that are tried beside the reference: 8 rows for the decode of one sequence; 64 and 256
/// rows because oneDNN reorders the weights once per call, which is worth its time only with many
/// rows.
constexpr std::array kOtherTiles{8, 64, kLargestTile};

/// Sets OpenMP's number of threads to 1 as long as the object lives. oneDNN asks OpenMP for this
/// number when it makes a primitive and again when it runs one. It is 1 so that the order of
/// additions does not depend on the machine's cores or on the calling thread.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type data_type(Dtype dtype) {
  return dtype == Dtype::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Random rows that are like activations: both signs, magnitudes over a few powers of two.
std::vector<std::byte> random_rows(std::int32_t rows, std::int32_t depth, Dtype dtype) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(std::size_t(rows) * depth * bytes_of(dtype));
  for (std::size_t i = 0; i < bytes.size(); i += bytes_of(dtype)) {
    const float value = normal(random);
    const std::uint16_t narrow = bf16_of_float(value);
    if (dtype == Dtype::bf16)
      std::memcpy(&bytes[i], &narrow, sizeof narrow);
    else
      std::memcpy(&bytes[i], &value, sizeof value);
  }
  return bytes;
}

/// Multiplies kLargestTile rows, after a cyclic shift by `shift` rows, with tiles of one size.
/// Returns the results in the original order of the rows.
std::vector<float> run_rows(const TileMatmul& matmul, const MatmulShape& shape, Dtype dtype,
                            const std::vector<std::byte>& rows, std::int32_t shift,
                            const void* weights) {
  const std::size_t row_bytes = std::size_t(shape.depth) * bytes_of(dtype);
  std::vector<std::byte> x(rows);
  std::rotate(x.begin(), x.begin() + shift * row_bytes, x.end());
  std::vector<float> y(std::size_t{kLargestTile} * shape.columns);
  for (std::int32_t row = 0; row < kLargestTile; row += matmul.tile())
    matmul.run(&x[row * row_bytes], weights, &y[std::size_t(row) * shape.columns]);
  std::rotate(y.begin(), y.end() - std::ptrdiff_t(shift) * shape.columns, y.end());
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::shared_ptr<const MatmulShape> calibrate(std::int32_t columns, std::int32_t depth, Dtype dtype,
                                             const void* weights) {
  MatmulShape shape{columns, depth, {}};
  const auto rows = random_rows(kLargestTile, depth, dtype);
  TileMatmul reference(kReferenceTile, columns, depth, dtype);
  const auto truth = run_rows(reference, shape, dtype, rows, 0, weights);
  const auto agrees = [&](const TileMatmul& matmul) {
    constexpr std::int32_t kShifts[] = {0, 1, 7, 8, 37};
    return std::ranges::all_of(kShifts, [&](std::int32_t shift) {
      return same_bits(run_rows(matmul, shape, dtype, rows, shift, weights), truth);
    });
  };
  // If the reference tile computes rows at different places differently, it cannot be used. Then
  // only the tile of 1 row is used: in it a row has only one place.
  if (!agrees(reference)) {
    shape.tiles.emplace_back(1, columns, depth, dtype);
    return std::make_shared<const MatmulShape>(std::move(shape));
  }
  shape.tiles.push_back(std::move(reference));
  for (const auto tile : kOtherTiles) {
    TileMatmul candidate(tile, columns, depth, dtype);
    if (agrees(candidate)) shape.tiles.push_back(std::move(candidate));
  }
  std::ranges::sort(shape.tiles, {}, &TileMatmul::tile);
  return std::make_shared<const MatmulShape>(std::move(shape));
}

}  // namespace

TileMatmul::TileMatmul(std::int32_t tile, std::int32_t columns, std::int32_t depth, Dtype dtype)
    : tile_(tile) {
  const OneThread one_thread;
  x_ = {{tile, depth}, data_type(dtype), Layout::ab};
  w_ = {
      {depth, columns}, data_type(dtype), Layout::ba};  // as it lies in the file: [columns, depth]
  y_ = {{tile, columns}, dnnl::memory::data_type::f32, Layout::ab};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc description({x_, w_, y_}, attributes, cpu());
  scratchpad_ = description.scratchpad_desc();
  matmul_ = dnnl::matmul(description);
}

void TileMatmul::run(const void* x, const void* w, float* y) const {
  thread_local dnnl::stream stream(cpu());
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < scratchpad_.get_size() + 64) scratch.resize(scratchpad_.get_size() + 64);
  void* aligned = scratch.data();
  std::size_t space = scratch.size();
  std::align(64, scratchpad_.get_size(), aligned, space);

  const OneThread one_thread;
  // oneDNN's handles are not const, though sources are only read.
  matmul_.execute(stream, {{DNNL_ARG_SRC, {x_, cpu(), const_cast<void*>(x)}},
                           {DNNL_ARG_WEIGHTS, {w_, cpu(), const_cast<void*>(w)}},
                           {DNNL_ARG_DST, {y_, cpu(), y}},
                           {DNNL_ARG_SCRATCHPAD, {scratchpad_, cpu(), aligned}}});
  stream.wait();
}

std::shared_ptr<const MatmulShape> matmul_shape(std::int32_t columns, std::int32_t depth,
                                                Dtype dtype, const void* weights) {
  using Key = std::tuple<std::int32_t, std::int32_t, Dtype>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const MatmulShape>> shapes;
  const std::lock_guard lock(mutex);
  auto& shape = shapes[{columns, depth, dtype}];
  if (!shape) shape = calibrate(columns, depth, dtype, weights);
  return shape;
}

}  // namespace kvhive
