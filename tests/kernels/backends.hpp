#pragma once
// Every implementation of the kernels' contract. The suites of this folder run over this table: a
// new backend is one more row.

#include <omp.h>

#include <ostream>
#include <string>
#include <vector>

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
  void (*mla)(const PagedMlaArgs&);
  void (*mla_write)(const MlaWriteArgs&);
  /// Whether it takes such a cache with queries (or new tokens) of that type; null: any. Cases of
  /// the matrix and of cache_write_test that it does not take are not run.
  bool (*takes_case)(const PagedKv&, Dtype activations) = nullptr;
  /// Sets how many workers share a call, where that can be chosen: bits must not depend on it.
  void (*set_workers)(int) = nullptr;
  int default_workers = 1;

  bool takes(const PagedKv& kv, Dtype activations) const {
    return takes_case == nullptr || takes_case(kv, activations);
  }
};

/// What gtest shows of it.
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

inline const Backend kReferenceBackend{
    "Reference",          paged_attention_reference, cache_write_reference, merge_states_reference,
    block_copy_reference, paged_mla_reference,       mla_write_reference};

inline const Backend kCpuBackend{"Cpu",
                                 paged_attention_cpu,
                                 cache_write_cpu,
                                 merge_states_cpu,
                                 block_copy_cpu,
                                 paged_mla_cpu,
                                 mla_write_cpu,
                                 nullptr,
                                 [](int workers) { omp_set_num_threads(workers); },
                                 omp_get_max_threads()};

inline const Backend kBackends[] = {kReferenceBackend, kCpuBackend};

/// Those whose work can be cut in several ways.
inline std::vector<Backend> backends_with_workers() {
  std::vector<Backend> backends;
  for (const Backend& backend : kBackends)
    if (backend.set_workers != nullptr) backends.push_back(backend);
  return backends;
}

/// While it lives, the backend has so many workers.
class Workers {
 public:
  Workers(const Backend& backend, int count) : backend_(backend) { set(count); }
  ~Workers() { set(backend_.default_workers); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

 private:
  void set(int count) const {
    if (backend_.set_workers != nullptr) backend_.set_workers(count);
  }

  Backend backend_;
};

}  // namespace kvhive::testing_support
