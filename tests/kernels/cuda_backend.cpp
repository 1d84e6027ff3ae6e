#include "cuda_backend.hpp"

#include <vector>

#include "base/check.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#if defined(KVHIVE_GPU_TESTS)
#include <cuda_runtime.h>
#else
#include "kernels/simt/launch.hpp"
#endif

namespace kvhive::testing_support {
namespace {

void expect_done(const Expected<void>& started) {
  KV_CHECK(started.has_value(), started.error().text);
#if defined(KVHIVE_GPU_TESTS)
  const cudaError_t error = cudaDeviceSynchronize();
  KV_CHECK(error == cudaSuccess, cudaGetErrorString(error));
#endif
}

void attention(const PagedAttentionArgs& args) {
  const SplitPlan plan = plan_splits(args);
  std::vector<float> states(plan.state_floats(args.H, args.kv.D) + 4);
  expect_done(paged_attention_cuda(args, plan.work(states.data()), nullptr));
}

void mla(const PagedMlaArgs& args) {
  const SplitPlan plan = plan_splits(args);
  std::vector<float> states(plan.state_floats(args.H, kMlaLatent) + 4);
  expect_done(paged_mla_cuda(args, plan.work(states.data()), nullptr));
}

void write(const CacheWriteArgs& args) { expect_done(cache_write_cuda(args, nullptr)); }
void merge(const MergeStatesArgs& args) { expect_done(merge_states_cuda(args, nullptr)); }
void copy(const BlockCopyArgs& args) { expect_done(block_copy_cuda(args, nullptr)); }

void mla_write(const MlaWriteArgs& args) { expect_done(mla_write_cuda(args, nullptr)); }

/// The cases that paged_attention_cuda says it takes.
bool takes(const PagedKv& kv, Dtype) {
  const auto all = reinterpret_cast<std::uintptr_t>(kv.k) | reinterpret_cast<std::uintptr_t>(kv.v) |
                   static_cast<std::uintptr_t>(kv.block_stride | kv.head_stride | kv.token_stride);
  const std::size_t element = bytes_of(kv.dtype);
  return kv.layout != PageLayout::packed && kv.D <= 256 && kv.D % 8 == 0 &&
         (kv.S & (kv.S - 1)) == 0 && all % (element == 1 ? 8 : 16) == 0;
}

/// 1, 2, 3: schedules of the emulator. A GPU cannot be told its schedule.
void set_schedule([[maybe_unused]] int number) {
#if !defined(KVHIVE_GPU_TESTS)
  simt::options = {};
  if (number == 2)
    simt::options = {
        .order = simt::Order::reverse, .delivery = simt::Delivery::early, .workers = 2};
  if (number == 3)
    simt::options = {.order = simt::Order::random, .delivery = simt::Delivery::random, .seed = 3};
#endif
}

}  // namespace

Backend cuda_backend() {
  return {"Cuda", attention, write, merge, copy, mla, mla_write, takes, set_schedule};
}

}  // namespace kvhive::testing_support
