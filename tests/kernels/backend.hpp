#pragma once
// One implementation of the kernels' contract. Tests allocate all arguments on the heap, where a
// GPU can be made to read them (tools/gpu).

#include <ostream>

#include "kernels/block_copy.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/merge_states.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive::testing_support {

struct Backend {
  const char* name;
  void (*attention)(const PagedAttentionArgs&);
  void (*write)(const CacheWriteArgs&);
  void (*merge)(const MergeStatesArgs&);
  void (*copy)(const BlockCopyArgs&);
  /// Null: this backend has no latent attention.
  void (*mla)(const PagedMlaArgs&);
  void (*mla_write)(const MlaWriteArgs&);
  /// Whether it takes this cache with queries (or new tokens) of this type; null: it takes all.
  /// Other cases are skipped.
  bool (*takes_case)(const PagedKv&, Dtype activations) = nullptr;
  /// Sets how the work of a call is shared or ordered (a number of workers, or the number of a
  /// schedule), for backends with a choice. Bits must not depend on it.
  void (*set_workers)(int) = nullptr;
  int default_workers = 1;

  bool takes(const PagedKv& kv, Dtype activations) const {
    return takes_case == nullptr || takes_case(kv, activations);
  }
};

/// gtest names a backend by this.
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace kvhive::testing_support
