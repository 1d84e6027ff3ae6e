#include "kernels/page_address.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

PagedKv page_of(PageLayout layout, Dtype dtype, std::int32_t S, std::int32_t D) {
  PagedKv kv;
  kv.S = S;
  kv.D = D;
  kv.dtype = dtype;
  kv.layout = layout;
  return kv;
}

/// Expects that offset(kv, s, d), called in the order of memory, gives each element's offset.
class NextElement {
 public:
  using Offset = std::int64_t (*)(const PagedKv&, std::int64_t, std::int64_t);
  NextElement(const PagedKv& kv, Offset offset) : kv_(kv), offset_(offset) {}

  void expect_at(std::int32_t s, std::int32_t d) {
    EXPECT_EQ(offset_(kv_, s, d), next_) << "slot " << s << " dim " << d;
    next_ += static_cast<std::int64_t>(bytes_of(kv_.dtype));
  }

 private:
  PagedKv kv_;
  Offset offset_;
  std::int64_t next_ = 0;
};

TEST(PageAddress, OfPackedPagesGoesTileByTile) {
  for (const std::int32_t S : {16, 32, 64}) {
    const PagedKv kv = page_of(PageLayout::packed, Dtype::bf16, S, 96);
    NextElement k(kv, key_offset), v(kv, value_offset);
    for (std::int32_t d = 0; d < kv.D; d += 32)
      for (std::int32_t s = 0; s < S; s += 16)
        for (std::int32_t pair = 0; pair < 16; ++pair)
          for (std::int32_t token = 0; token < 16; ++token)
            for (std::int32_t i = 0; i < 2; ++i) k.expect_at(s + token, d + pair * 2 + i);
    for (std::int32_t d = 0; d < kv.D; d += 16)
      for (std::int32_t s = 0; s < S; s += 2)
        for (std::int32_t dim = 0; dim < 16; ++dim)
          for (std::int32_t i = 0; i < 2; ++i) v.expect_at(s + i, d + dim);
  }
}

TEST(PageAddress, OfPackedPagesOf8BitsTakesTwoLinesInTurn) {
  for (const std::int32_t S : {16, 32, 64}) {
    const PagedKv kv = page_of(PageLayout::packed, Dtype::e4m3, S, 96);
    NextElement k(kv, key_offset), v(kv, value_offset);
    for (std::int32_t d = 0; d < kv.D; d += 32)
      for (std::int32_t s = 0; s < S; s += 16)
        for (std::int32_t pair = 0; pair < 16; pair += 2)
          for (std::int32_t token = 0; token < 16; token += 4)
            for (std::int32_t line = 0; line < 2; ++line)
              for (std::int32_t i = 0; i < 8; ++i)
                k.expect_at(s + token + i / 2, d + (pair + line) * 2 + i % 2);
    for (std::int32_t d = 0; d < kv.D; d += 16)
      for (std::int32_t s = 0; s < S; s += 4)
        for (std::int32_t dim = 0; dim < 16; dim += 4)
          for (std::int32_t line = 0; line < 2; ++line)
            for (std::int32_t i = 0; i < 8; ++i) v.expect_at(s + line * 2 + i % 2, d + dim + i / 2);
  }
}

TEST(PageAddress, OfRowsFollowsTheStrides) {
  PagedKv kv = page_of(PageLayout::rows, Dtype::bf16, 16, 64);
  kv.block_stride = 1'000'000'000'000;
  kv.head_stride = 1'000'000'000;
  kv.token_stride = 1'000'000;
  EXPECT_EQ(page_offset(kv, 7, 5) + key_offset(kv, 3, 11), 7'005'003'000'022);
  EXPECT_EQ(page_offset(kv, 7, 5) + value_offset(kv, 3, 11), 7'005'003'000'022);
}

}  // namespace
}  // namespace kvhive
