#pragma once
// Which kernels a transformer attends with.

#include "kernels/cache_write.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {

struct AttentionBackend {
  void (*write)(const CacheWriteArgs&) = cache_write_cpu;
  void (*attend)(const PagedAttentionArgs&) = paged_attention_cpu;
};

/// The kernels' double-precision references: slow, for tests.
inline constexpr AttentionBackend kReferenceAttention{cache_write_reference,
                                                      paged_attention_reference};

}  // namespace kvhive
