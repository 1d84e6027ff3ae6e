#pragma once
// Which kernels a transformer attends with.

#include "kernels/cache_write.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {

struct AttentionBackend {
  void (*write)(const CacheWriteArgs&) = cache_write_cpu;
  void (*attend)(const PagedAttentionArgs&) = paged_attention_cpu;
  void (*write_latents)(const MlaWriteArgs&) = mla_write_cpu;
  void (*attend_latents)(const PagedMlaArgs&) = paged_mla_cpu;
};

/// The kernels' double-precision references: slow, for tests.
inline constexpr AttentionBackend kReferenceAttention{
    cache_write_reference, paged_attention_reference, mla_write_reference, paged_mla_reference};

}  // namespace kvhive
