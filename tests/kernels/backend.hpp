#pragma once
// One implementation of the kernels' contract. What is handed to it lies on the heap: a GPU may
// read it there (tools/gpu).

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
  /// Null: not there.
  void (*mla)(const PagedMlaArgs&);
  void (*mla_write)(const MlaWriteArgs&);
  /// Whether it takes such a cache with queries (or new tokens) of that type; null: any. What it
  /// does not take is not run.
  bool (*takes_case)(const PagedKv&, Dtype activations) = nullptr;
  /// Sets how a call's work is shared or ordered, where that can be chosen: bits must not depend
  /// on it. A number of workers, or of a schedule.
  void (*set_workers)(int) = nullptr;
  int default_workers = 1;

  bool takes(const PagedKv& kv, Dtype activations) const {
    return takes_case == nullptr || takes_case(kv, activations);
  }
};

/// What gtest shows of it.
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace kvhive::testing_support
