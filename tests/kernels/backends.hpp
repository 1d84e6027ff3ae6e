#pragma once
// All implementations of the kernels' contract. The suites of this folder run over this table: a
// new backend is one more row.

#include <algorithm>
#include <iterator>
#include <vector>

#include "backend.hpp"
#include "cuda_backend.hpp"
#if !defined(KVHIVE_GPU_TESTS)
#include <omp.h>
#endif

namespace kvhive::testing_support {

inline const Backend kReferenceBackend{
    "Reference",          paged_attention_reference, cache_write_reference, merge_states_reference,
    block_copy_reference, paged_mla_reference,       mla_write_reference};

#if defined(KVHIVE_GPU_TESTS)  // when testing a GPU, the reference is enough beside it
inline const Backend kBackends[] = {kReferenceBackend, cuda_backend()};
#else
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

#if defined(KVHIVE_HAS_CUDA_BACKEND)
inline const Backend kBackends[] = {kReferenceBackend, kCpuBackend, cuda_backend()};
#else
inline const Backend kBackends[] = {kReferenceBackend, kCpuBackend};
#endif
#endif

template <class Wanted>
std::vector<Backend> backends_with(Wanted wanted) {
  std::vector<Backend> backends;
  std::copy_if(std::begin(kBackends), std::end(kBackends), std::back_inserter(backends), wanted);
  return backends;
}

/// The backends that can share or order their work in several ways.
inline std::vector<Backend> backends_with_workers() {
  return backends_with([](const Backend& backend) { return backend.set_workers != nullptr; });
}

inline std::vector<Backend> backends_with_mla() {
  return backends_with([](const Backend& backend) { return backend.mla != nullptr; });
}

/// Sets the backend's number of workers for as long as it lives.
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
