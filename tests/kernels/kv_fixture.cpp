#include "kv_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/element.hpp"
#include "kernels/page_address.hpp"

namespace kvhive::testing_support {
namespace {

constexpr BlockId kFarOutside[] = {{0xffffffffu}, {2147480000u}};
constexpr std::int32_t kSpareBlocks = 5;
constexpr std::size_t kGuardBytes = 256;

float as_stored(float value, Dtype dtype) {
  std::byte bytes[4];
  store_element(bytes, value, dtype);
  return load_element(bytes, dtype);
}

/// An output array filled with poison, with guards around it.
class GuardedOutput {
 public:
  explicit GuardedOutput(std::size_t bytes) : bytes_(bytes + 2 * kGuardBytes, std::byte{0xff}) {}

  std::byte* data() { return bytes_.data() + kGuardBytes; }

  /// The elements. Expects that all have been written and that the guards have not.
  std::vector<float> checked(Dtype dtype) const {
    const std::size_t bytes = bytes_.size() - 2 * kGuardBytes;
    std::vector<float> elements;
    for (std::size_t at = 0; at < bytes; at += bytes_of(dtype))
      elements.push_back(load_element(bytes_.data() + kGuardBytes + at, dtype));
    EXPECT_TRUE(std::none_of(elements.begin(), elements.end(), [](float x) {
      return std::isnan(x);
    })) << "NaN in a result, or not written";
    const auto is_poison = [](std::byte byte) { return byte == std::byte{0xff}; };
    EXPECT_TRUE(std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_poison) &&
                std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_poison))
        << "written beside the result";
    return elements;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<SequenceSpec> sequences_of(const std::vector<std::int32_t>& lengths) {
  std::vector<SequenceSpec> specs;
  for (const std::int32_t length : lengths)
    specs.push_back({static_cast<std::uint32_t>(specs.size() + 7), length});
  return specs;
}

std::vector<Query> queries_of(const std::vector<std::int32_t>& lengths, std::int32_t q_len) {
  std::vector<Query> queries;
  for (const std::int32_t length : lengths)
    queries.push_back({queries.size(), length, std::min(q_len, length)});
  return queries;
}

KvFixture::KvFixture(Shape shape, std::vector<SequenceSpec> sequences, std::uint32_t block_seed)
    : shape_(shape) {
  arena_ = PagedArena(shape_, 0);  // made early because it has the scales
  for (const SequenceSpec& spec : sequences) sequences_.push_back(make_sequence(spec));
  deal_blocks(block_seed);
  if (shape_.has_aliases) alias_blocks();
  for (std::size_t s = 0; s < sequences_.size(); ++s)
    for (std::int32_t p = 0; p < sequences_[s].tokens; ++p)
      for (std::int32_t g = 0; g < shape_.G; ++g) store(s, p, g);
}

KvFixture::Sequence KvFixture::make_sequence(SequenceSpec spec) const {
  Sequence sequence{spec.tokens, {}, {}, {}};
  std::mt19937 random(spec.seed);
  // Not std::normal_distribution, which caches a value: two sequences of one seed must agree token
  // by token.
  const auto number = [&random] {
    return static_cast<float>(random() % 65536) / 16384.0f - 2.0f + 1e-5f;
  };
  const auto add_row = [&](Plane& plane, float fixed) {
    const float scale = shape_.scaling == Scaling::token
                            ? usual_scale(shape_.dtype) * (1.0f + 0.25f * number())
                            : fixed;
    plane.scales.push_back(scale);
    for (std::int32_t d = 0; d < shape_.D; ++d)
      plane.elements.push_back(as_stored(number() / scale, shape_.dtype));
  };
  for (std::int32_t p = 0; p < spec.tokens; ++p) {
    for (std::int32_t i = 0; i < shape_.H * shape_.D; ++i)
      sequence.q.push_back(as_stored(number(), shape_.q_dtype));
    for (std::int32_t g = 0; g < shape_.G; ++g) {
      add_row(sequence.k, arena_.fixed_k_scale(g));
      add_row(sequence.v, arena_.fixed_v_scale(g));
    }
  }
  return sequence;
}

void KvFixture::deal_blocks(std::uint32_t block_seed) {
  std::int32_t blocks = kSpareBlocks;
  table_width_ = 2;  // rows of the table are longer than every sequence
  for (const Sequence& sequence : sequences_) {
    blocks += blocks_of(sequence.tokens);
    table_width_ = std::max(table_width_, blocks_of(sequence.tokens) + 2);
  }
  std::vector<std::uint32_t> ids(blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(block_seed));

  for (std::size_t i = 0; i < sequences_.size() * table_width_; ++i)
    block_table_.push_back(kFarOutside[i % 2]);
  for (std::size_t s = 0; s < sequences_.size(); ++s)
    for (std::int32_t m = 0; m < blocks_of(sequences_[s].tokens); ++m) {
      block_table_[s * table_width_ + m] = BlockId{ids.back()};
      ids.pop_back();
    }
  arena_ = PagedArena(shape_, blocks);
}

void KvFixture::alias_block(std::size_t to, std::int32_t to_block, std::size_t from,
                            std::int32_t from_block) {
  const std::int32_t S = shape_.S;
  if (from_block < 0 || (to_block + 1) * S > sequences_[to].tokens ||
      (from_block + 1) * S > sequences_[from].tokens)
    return;
  block_table_[to * table_width_ + to_block] = block_table_[from * table_width_ + from_block];
  const auto copy = [&](std::vector<float>& into, const std::vector<float>& of, std::size_t token) {
    std::copy_n(of.begin() + from_block * S * token, S * token,
                into.begin() + to_block * S * token);
  };
  for (Plane Sequence::*plane : {&Sequence::k, &Sequence::v}) {
    copy((sequences_[to].*plane).elements, (sequences_[from].*plane).elements,
         static_cast<std::size_t>(shape_.G) * shape_.D);
    copy((sequences_[to].*plane).scales, (sequences_[from].*plane).scales, shape_.G);
  }
}

void KvFixture::alias_blocks() {
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    if (s > 0) alias_block(s, 0, 0, 0);
    for (std::int32_t m = 1; m < blocks_of(sequences_[s].tokens); m += 3)
      alias_block(s, m, s, m - 1);
  }
}

void KvFixture::store(std::size_t sequence, std::int32_t position, std::int32_t g) {
  const PagedKv kv = arena_.kv();
  const std::int64_t block = block_table_[sequence * table_width_ + position / shape_.S].value;
  const std::int32_t slot = position % shape_.S;
  const std::size_t row = static_cast<std::size_t>(position) * shape_.G + g;
  const std::int64_t page = page_offset(kv, block, g);
  const Sequence& from = sequences_[sequence];
  for (std::int32_t d = 0; d < shape_.D; ++d) {
    store_element(kv.k + page + key_offset(kv, slot, d), from.k.elements[row * shape_.D + d],
                  shape_.dtype);
    store_element(kv.v + page + value_offset(kv, slot, d), from.v.elements[row * shape_.D + d],
                  shape_.dtype);
  }
  if (!kv.scales.are_per_token()) return;
  *scale_at(kv.scales, kv.scales.k, block, g, slot) = from.k.scales[row];
  *scale_at(kv.scales, kv.scales.v, block, g, slot) = from.v.scales[row];
}

void KvFixture::poison_tokens_from(std::size_t sequence, std::int32_t first, float value) {
  Sequence& tokens = sequences_[sequence];
  const std::int32_t end = blocks_of(tokens.tokens) * shape_.S;
  for (Plane* plane : {&tokens.k, &tokens.v}) {
    const std::size_t rows = static_cast<std::size_t>(end) * shape_.G;
    plane->elements.resize(rows * shape_.D);
    plane->scales.resize(rows, 1.0f);
    std::fill(plane->elements.begin() + std::size_t(first) * shape_.G * shape_.D,
              plane->elements.end(), value);
  }
  for (std::int32_t p = first; p < end; ++p)
    for (std::int32_t g = 0; g < shape_.G; ++g) store(sequence, p, g);
}

void KvFixture::drop_first_blocks(std::size_t sequence, std::int32_t blocks) {
  std::fill_n(block_table_.begin() + sequence * table_width_, blocks, kFarOutside[0]);
}

void KvFixture::round_queries_to(Dtype dtype) {
  for (Sequence& sequence : sequences_)
    for (float& value : sequence.q) value = as_stored(value, dtype);
}

Output KvFixture::run(Attention attention, const std::vector<Query>& queries,
                      const Features& features) {
  std::vector<std::byte> q;
  std::vector<BlockId> table;
  std::vector<std::int32_t> query_start{0}, kv_len;
  const std::int64_t token_elements = std::int64_t{shape_.H} * shape_.D;
  const std::size_t element = bytes_of(shape_.q_dtype);
  for (const Query& query : queries) {
    const std::vector<float>& from = sequences_[query.sequence].q;
    const std::int64_t q_from = query.q_from < 0 ? query.kv_len - query.q_len : query.q_from;
    for (std::int64_t i = q_from * token_elements; i < (q_from + query.q_len) * token_elements;
         ++i) {
      q.resize(q.size() + element);
      store_element(q.data() + q.size() - element, from[i], shape_.q_dtype);
    }
    const auto row = block_table_.begin() + query.sequence * table_width_;
    table.insert(table.end(), row, row + table_width_);
    query_start.push_back(query_start.back() + query.q_len);
    kv_len.push_back(query.kv_len);
  }
  std::vector<float> sinks;
  for (std::int32_t h = 0; h < shape_.H; ++h) {
    sinks.push_back(sink_of(h));
  }
  const std::size_t rows = q.size() / element / shape_.D;
  GuardedOutput out(q.size()), lse(features.wants_lse ? rows * sizeof(float) : 0);
  const std::vector<std::byte> arena_before = arena_.bytes();

  PagedAttentionArgs args;
  args.q = q.data();
  args.kv = arena_.kv();
  args.block_table = table.data();
  args.query_start = query_start.data();
  args.kv_len = kv_len.data();
  args.out = out.data();
  args.lse = features.wants_lse ? reinterpret_cast<float*>(lse.data()) : nullptr;
  args.sinks = features.has_sinks ? sinks.data() : nullptr;
  args.B = static_cast<std::int32_t>(queries.size());
  args.H = shape_.H;
  args.M = table_width_;
  args.q_dtype = shape_.q_dtype;
  args.window = features.window;
  args.chunk = features.chunk;
  args.soft_cap = features.soft_cap;
  args.scale = scale_of(shape_);
  attention(args);

  EXPECT_TRUE(arena_.bytes() == arena_before) << "wrote into the cache";
  return {out.checked(shape_.q_dtype), lse.checked(Dtype::f32)};
}

/// -inf where head h at position p does not attend to position t.
double KvFixture::score(const Sequence& sequence, const Features& features, std::int32_t p,
                        std::int32_t h, std::int32_t t) const {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const std::int32_t g = h * shape_.G / shape_.H;
  if (features.window > 0 && p - t >= features.window) return kHidden;
  if (features.chunk > 0 && p / features.chunk != t / features.chunk) return kHidden;
  const float* q = &sequence.q[(std::size_t(p) * shape_.H + h) * shape_.D];
  const std::size_t row = std::size_t(t) * shape_.G + g;
  const double dot = std::inner_product(q, q + shape_.D, &sequence.k.elements[row * shape_.D], 0.0);
  const double raw = double{scale_of(shape_)} * dot * sequence.k.scales[row];
  return features.soft_cap > 0 ? features.soft_cap * std::tanh(raw / features.soft_cap) : raw;
}

void KvFixture::attend_densely(const Sequence& sequence, std::int32_t p, std::int32_t h,
                               const Features& features, ExactOutput& output) const {
  const std::int32_t g = h * shape_.G / shape_.H;
  // Scores of the fixture's numbers are far from overflowing exp() in double: no max needed.
  double sum = features.has_sinks ? std::exp(double{sink_of(h)}) : 0;
  std::vector<double> out(shape_.D, 0.0);
  for (std::int32_t t = 0; t <= p; ++t) {
    const double weight = std::exp(score(sequence, features, p, h, t));
    if (weight == 0) continue;
    sum += weight;
    const std::size_t row = std::size_t(t) * shape_.G + g;
    const double scaled = weight * sequence.v.scales[row];
    const float* v = &sequence.v.elements[row * shape_.D];
    for (std::int32_t d = 0; d < shape_.D; ++d) out[d] += scaled * v[d];
  }
  for (const double value : out) output.out.push_back(sum > 0 ? value / sum : 0);
  output.lse.push_back(std::log(sum));
}

ExactOutput KvFixture::run_densely(const std::vector<Query>& queries,
                                   const Features& features) const {
  ExactOutput output;
  for (const Query& query : queries)
    for (std::int32_t p = query.kv_len - query.q_len; p < query.kv_len; ++p)
      for (std::int32_t h = 0; h < shape_.H; ++h)
        attend_densely(sequences_[query.sequence], p, h, features, output);
  return output;
}

float scale_of(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.D)); }
float sink_of(std::int32_t h) { return static_cast<float>(h % 7) - 2.5f; }

double worst_relative_error(const std::vector<float>& got, const std::vector<double>& want,
                            std::int32_t D) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.size()) return kInfinity;
  double worst = 0;
  for (std::size_t row = 0; row < got.size(); row += D) {
    double error = 0, norm = 0;
    for (std::size_t i = row; i < row + D; ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : error == 0 ? 0 : kInfinity;
    worst = relative <= worst ? worst : relative;  // a NaN wins
  }
  return worst;
}

double worst_error(const std::vector<float>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = got[i] == want[i] ? 0 : std::fabs(got[i] - want[i]);
    worst = error <= worst ? worst : error;  // a NaN wins
  }
  return worst;
}

double tolerance_of(const Shape& shape) {
  switch (shape.q_dtype) {
    // Weights and results are rounded to bf16, by 2^-9 at most each; in rows of few tokens these
    // errors do not even out.
    case Dtype::bf16: return 0x1p-8;
    case Dtype::f16: return 5e-4;
    default: return 1e-5;
  }
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace kvhive::testing_support
