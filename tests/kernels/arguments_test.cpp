// Arguments that every backend refuses, with a message that names what is wrong.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "backends.hpp"
#include "paged_arena.hpp"

#include "kernels/row_kernels.hpp"
#include "kernels/sampling.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

class ArgumentsDeathTest : public testing::TestWithParam<Backend> {
 protected:
  /// Calls attention with valid arguments after `spoil` has changed them.
  static void attend(const Shape& shape, const std::function<void(PagedAttentionArgs&)>& spoil) {
    PagedArena arena(shape, 1);
    const std::vector<float> q(static_cast<std::size_t>(shape.H) * shape.D, 0.0f);
    std::vector<float> out(q.size());
    const std::int32_t query_start[] = {0, 0}, kv_len = 0;
    const BlockId table{0};
    PagedAttentionArgs args;
    args.q = q.data();
    args.kv = arena.kv();
    args.block_table = &table;
    args.query_start = query_start;
    args.kv_len = &kv_len;
    args.out = out.data();
    args.B = 1;
    args.H = shape.H;
    args.M = 1;
    spoil(args);
    GetParam().attention(args);
  }

  static void write(const Shape& shape, const std::function<void(CacheWriteArgs&)>& spoil) {
    PagedArena arena(shape, 1);
    CacheWriteArgs args;
    args.kv = arena.kv();
    spoil(args);
    GetParam().write(args);
  }
};

void nothing(PagedAttentionArgs&) {}

TEST_P(ArgumentsDeathTest, NameShapesThatCannotBe) {
  EXPECT_DEATH(attend({.D = 12}, nothing), "D % 8 == 0: 12");
  EXPECT_DEATH(attend({.H = 6, .G = 4}, nothing), "H % args.kv.G == 0: 6 4");
  EXPECT_DEATH(attend({}, [](auto& args) { args.q_dtype = Dtype::e4m3; }), "q_dtype");
  EXPECT_DEATH(attend({}, [](auto& args) { args.window = -1; }), "window");
}

TEST_P(ArgumentsDeathTest, NameSequencesThatDoNotFit) {
  static constexpr std::int32_t kTwo[] = {0, 2}, kOne = 1, kTooLong = 17;
  EXPECT_DEATH(attend({},
                      [](auto& args) {
                        args.query_start = kTwo;
                        args.kv_len = &kOne;
                      }),
               "q_len <= kv_len.*0 2 1");
  EXPECT_DEATH(attend({}, [](auto& args) { args.kv_len = &kTooLong; }), "table_tokens.*17 16");
}

TEST_P(ArgumentsDeathTest, NameLayoutsThatATypeOrSizeCannotHave) {
  EXPECT_DEATH(attend({.dtype = Dtype::f16, .storage = Storage::packed}, nothing),
               "Dtype::bf16.*: 2");
  EXPECT_DEATH(attend({.S = 8, .storage = Storage::packed}, nothing), "S % 16 == 0: 8");
  EXPECT_DEATH(attend({.D = 80, .storage = Storage::packed}, nothing), "D % 32 == 0: 80");
  EXPECT_DEATH(attend({}, [](auto& args) { args.kv.layout = PageLayout{9}; }), "layout.*9");
}

TEST_P(ArgumentsDeathTest, NameScalesThatAreMissingOrTooMany) {
  const Shape per_token{.dtype = Dtype::int8, .scaling = Scaling::token};
  EXPECT_DEATH(attend(per_token, [](auto& args) { args.kv.scales.k = nullptr; }), "are_per_token");
  EXPECT_DEATH(write(per_token, [](auto& args) { args.kv.scales.v = nullptr; }), "are_per_token");
  EXPECT_DEATH(attend({.scaling = Scaling::tensor}, nothing), "bytes_of.*== 1");
  EXPECT_DEATH(write({}, [](auto& args) { args.in_dtype = Dtype::int8; }), "in_dtype");
}

TEST(RowArgumentsDeathTest, NameShapesThatNoModelHas) {
  EXPECT_DEATH(embed_reference({.T = 1}), "width > 0.*1 0");
  EXPECT_DEATH(add_rms_norm_reference({.n = 1, .width = 4, .out_dtype = Dtype::int8}),
               "out_dtype.*5");
  EXPECT_DEATH(rotate_reference({.T = 1, .H = 1, .G = 1, .D = 7}), "D % 2 == 0.*7");
  EXPECT_DEATH(rotate_pairs_reference({.T = 1, .H = 1, .D = 8, .from_stride = 8}),
               "to_stride >= .*8 0");
  EXPECT_DEATH(gate_multiply_reference({.T = 1, .I = 8, .in_stride = 4}), "in_stride >= .*8 4");
  EXPECT_DEATH(soft_cap_reference({.count = 1}), "cap > 0");
  const SampleChoice choice{.likeliest = 3};
  EXPECT_DEATH(sample_reference({.choices = &choice, .n = 1, .vocab = 9, .K = 2}),
               "likeliest.*3 2");
}

INSTANTIATE_TEST_SUITE_P(Backends, ArgumentsDeathTest,
                         testing::ValuesIn(backends_with([](const Backend& backend) {
                           return backend.takes_case ==
                                  nullptr;  // other backends refuse by returning an error
                         })),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
