#pragma once
// Multi-head latent attention (MLA) over a paged cache, with the projections absorbed into q and
// out: all query heads attend to one row per token, and the first 512 of its 576 elements are the
// value, too.
//
// Source: DeepSeek-V2; FlashMLA (row of 656 bytes); vLLM concat_and_cache_mla.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/ids.hpp"
#include "config/dtype.hpp"

namespace kvhive {

inline constexpr std::int32_t kMlaLatent = 512;  ///< elements that are key and value
inline constexpr std::int32_t kMlaRope = 64;     ///< elements with rotary embedding: key only
inline constexpr std::int32_t kMlaRow = kMlaLatent + kMlaRope;

enum class MlaRow : std::uint8_t {
  bf16 = 0,  ///< 576 bf16: 1,152 bytes
  /// 512 e4m3, then 4 f32 scales (one per 128 elements: their largest magnitude / 448, or 1 if that
  /// is 0), then 64 bf16: 656 bytes
  fp8 = 1,
};

constexpr std::size_t bytes_of(MlaRow row) { return row == MlaRow::bf16 ? 1152 : 656; }

/// One layer of latent rows; borrowed pointers. The row of (block b, slot s) is at base +
/// b*block_stride + s*token_stride, with strides in BYTES.
struct PagedLatents {
  std::byte* base = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int32_t S = 0;
  MlaRow row = MlaRow::bf16;
};

/// As PagedAttentionArgs with one kv head: causal, out = softmax(scale * q.row) . row[0..511].
struct PagedMlaArgs {
  const void* q = nullptr;  ///< [T, H, 576] of q_dtype
  PagedLatents kv;
  const BlockId* block_table = nullptr;       ///< [B, M]
  const std::int32_t* query_start = nullptr;  ///< [B+1]
  const std::int32_t* kv_len = nullptr;       ///< [B]
  void* out = nullptr;                        ///< [T, H, 512] of q_dtype
  float* lse = nullptr;                       ///< [T, H] natural logarithm; null: not written
  std::int32_t B = 0, H = 0, M = 0;
  Dtype q_dtype = Dtype::f32;  ///< f32, bf16 or f16
  float scale = 1.0f;
};
static_assert(std::is_trivially_copyable_v<PagedMlaArgs>);

struct MlaWriteArgs {
  const void* latent = nullptr;                ///< [T, 512] of in_dtype
  const void* rope = nullptr;                  ///< [T, 64] of in_dtype
  const std::int64_t* slot_mapping = nullptr;  ///< [T] block*S + slot; -1: padding, not written
  PagedLatents kv;
  std::int32_t T = 0;
  Dtype in_dtype = Dtype::f32;
};
static_assert(std::is_trivially_copyable_v<MlaWriteArgs>);

void paged_mla_reference(const PagedMlaArgs& args);
void paged_mla_cpu(const PagedMlaArgs& args);
void mla_write_reference(const MlaWriteArgs& args);
void mla_write_cpu(const MlaWriteArgs& args);

}  // namespace kvhive
