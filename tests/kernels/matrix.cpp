#include "matrix.hpp"

#include <algorithm>

#include "pairwise.hpp"

namespace kvhive::testing_support {
namespace {

/// Element type, scales and storage. One factor, so that each of its combinations is paired with
/// every value of the other factors.
struct Stored {
  Dtype dtype;
  Scaling scaling;
  Storage storage;
};

std::vector<Stored> all_stored() {
  std::vector<Stored> all;
  for (const Storage storage : {Storage::hnd, Storage::nhd, Storage::packed}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::e4m3, Dtype::int8})
      if (storage != Storage::packed || dtype == Dtype::bf16 || bytes_of(dtype) == 1)
        all.push_back({dtype, Scaling::none, storage});
    for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
      for (const Scaling scaling : {Scaling::tensor, Scaling::head, Scaling::token})
        all.push_back({dtype, scaling, storage});
  }
  return all;
}

const std::vector<Stored> kStored = all_stored();
constexpr std::pair<std::int32_t, std::int32_t> kHeads[] = {
    {1, 1}, {4, 4}, {4, 2}, {9, 3}, {8, 2}, {10, 2}, {14, 2}, {8, 1}, {16, 1}, {32, 1}, {40, 8}};
constexpr std::int32_t kHeadSizes[] = {64, 80, 96, 112, 120, 128, 192, 256};
constexpr std::int32_t kBlockSizes[] = {8, 16, 32};
constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
enum Lengths { one, around_a_block, mixed, around_a_chunk, around_a_span, two_spans, many };
constexpr std::int32_t kQueries[] = {1, 2, 5, 17, 129};
constexpr std::int32_t kWindows[] = {0, 1, 5, 64, 100000};
constexpr std::int32_t kChunks[] = {0, 24, 200};
constexpr float kSoftCaps[] = {0, 30, 0.5f};
constexpr int kOffOn = 2;

enum Factor {
  stored,
  heads,
  head_size,
  block_size,
  activation,
  lengths,
  queries,
  window,
  chunk,
  soft_cap,
  sinks,
  lse
};

const std::vector<int> kSizes = {static_cast<int>(kStored.size()),
                                 std::size(kHeads),
                                 std::size(kHeadSizes),
                                 std::size(kBlockSizes),
                                 std::size(kActivations),
                                 Lengths::many + 1,
                                 std::size(kQueries),
                                 std::size(kWindows),
                                 std::size(kChunks),
                                 std::size(kSoftCaps),
                                 kOffOn,
                                 kOffOn};

/// Whether the layouts allow both values in one case. `a` belongs to an earlier factor than `b`.
bool is_allowed(FactorValue a, FactorValue b) {
  if (a.factor != stored) return true;
  const Stored& s = kStored[a.value];
  if (b.factor == head_size) {
    const std::int32_t D = kHeadSizes[b.value];
    if (s.storage == Storage::packed) return D % 32 == 0;
  }
  return !(b.factor == block_size && s.storage == Storage::packed && kBlockSizes[b.value] == 8);
}

std::vector<std::int32_t> kv_lens(int profile, std::int32_t S) {
  switch (profile) {
    case one: return {1};
    case around_a_block: return {S - 1, S, S + 1};
    case mixed: return {0, 17, 129, 0, 3};
    case around_a_chunk: return {127, 128, 129};
    case around_a_span: return {511, 513};
    case two_spans: return {1023};
    default: return {1, 2, 3, 5, 8, 13, 21, 34, 55, 4, 6, 7, 9, 10, 11, 12, 14};
  }
}

/// Keeps the time of the element-by-element truth below some milliseconds.
std::int32_t affordable_queries(std::int32_t wanted, std::int32_t length, const Shape& shape) {
  constexpr std::int64_t kProducts = 3'000'000;
  const std::int64_t each = std::int64_t{2} * shape.H * shape.D * std::max(length, 1);
  return std::min(
      {wanted, length, static_cast<std::int32_t>(std::max<std::int64_t>(1, kProducts / each))});
}

MatrixCase make_case(std::size_t number, const std::vector<int>& values) {
  const Stored& s = kStored[values[stored]];
  MatrixCase made;
  Shape& shape = made.shape;
  shape.dtype = s.dtype;
  shape.storage = s.storage;
  shape.scaling = s.scaling;
  shape.H = kHeads[values[heads]].first;
  shape.G = kHeads[values[heads]].second;
  shape.D = kHeadSizes[values[head_size]];
  shape.S = kBlockSizes[values[block_size]];
  shape.q_dtype = kActivations[values[activation]];
  shape.has_aliases = true;

  for (const std::int32_t length : kv_lens(values[lengths], shape.S)) {
    const std::size_t i = made.sequences.size();
    made.sequences.push_back({static_cast<std::uint32_t>(number * 100 + i), length});
    made.queries.push_back(
        {i, length, affordable_queries(kQueries[values[queries]], length, shape)});
  }
  Features& features = made.features;
  features.window = kWindows[values[window]];
  features.chunk = kChunks[values[chunk]];
  features.soft_cap = kSoftCaps[values[soft_cap]];
  features.has_sinks = values[sinks] == 1;
  features.wants_lse = values[lse] == 1;

  constexpr const char* kStorages[] = {"hnd", "nhd", "packed"};
  constexpr const char* kScalings[] = {"none", "tensor", "head", "token"};
  made.name =
      "case " + std::to_string(number) + ": " + std::string(to_string(s.dtype)) + " " +
      kStorages[int(s.storage)] + " scale " + kScalings[int(s.scaling)] + " H" +
      std::to_string(shape.H) + " G" + std::to_string(shape.G) + " D" + std::to_string(shape.D) +
      " S" + std::to_string(shape.S) + " q " + std::string(to_string(shape.q_dtype)) + " lengths " +
      std::to_string(values[lengths]) + " q_len " + std::to_string(kQueries[values[queries]]) +
      " window " + std::to_string(features.window) + " chunk " + std::to_string(features.chunk) +
      " cap " + std::to_string(features.soft_cap) + " sinks " + std::to_string(values[sinks]);
  return made;
}

}  // namespace

std::vector<MatrixCase> matrix_cases() {
  std::vector<MatrixCase> cases;
  for (const std::vector<int>& values : pairwise_cover(kSizes, is_allowed, 1))
    cases.push_back(make_case(cases.size(), values));
  return cases;
}

}  // namespace kvhive::testing_support
