#include "kernels/cpu/packed/packed_attention.hpp"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/cpu/packed/packed_spans.hpp"

namespace kvhive {
namespace {

/// One thread's scratch: all parts in one aligned allocation.
class ScratchMemory {
 public:
  ScratchMemory(const PackedPlan& plan, std::int32_t head_size, std::size_t number_bytes) {
    const std::size_t rows = plan.max_rows;
    const std::size_t head_rows = plan.max_head_rows;
    const std::size_t state = rows * packed_state_floats(head_size);
    const std::size_t wide_bytes =
        std::max<std::size_t>(kLeastWideBytes, 2 * kChunkTokens * std::size_t(head_size));
    ranges_.resize(head_rows);
    const std::size_t weight_bytes = rows * kChunkTokens * number_bytes;
    const std::size_t query_bytes = rows * head_size * number_bytes;
    floats_ = allocate_aligned<float>(2 * state + rows * kChunkTokens +
                                      (weight_bytes + query_bytes + wide_bytes) / sizeof(float));
    scratch_.span = floats_.get();
    scratch_.total = scratch_.span + state;
    scratch_.scores = scratch_.total + state;
    auto* const rest = reinterpret_cast<std::byte*>(scratch_.scores + rows * kChunkTokens);
    scratch_.weights = rest;
    scratch_.q = rest + weight_bytes;
    scratch_.wide = rest + weight_bytes + query_bytes;
    scratch_.ranges = ranges_.data();
  }

  const PackedScratch& get() const { return scratch_; }

 private:
  AlignedArray<float> floats_;
  std::vector<KvRange> ranges_;
  PackedScratch scratch_;
};

PackedKernels& kernels() {
  static PackedKernels all{native::kPackedDots, multiplied::kPackedDots, native::kPackedTiles};
  return all;
}

const PackedFunctions& functions_in_use() {
  if (cpu_kernels() == CpuKernels::amx) return kernels().tiles;
  return dot_way().way == DotWay::instruction ? kernels().dots : kernels().multiplied_dots;
}

}  // namespace

PageLayout fastest_page_layout(std::int32_t S, std::int32_t D, Dtype dtype) {
  const PagedAttentionArgs plain{
      .kv = {.S = S, .D = D, .dtype = dtype, .layout = PageLayout::packed}};
  return packed_attention_takes(plain) ? PageLayout::packed : PageLayout::rows;
}

bool packed_attention_takes(const PagedAttentionArgs& args) {
  const PagedKv& kv = args.kv;
  return kv.layout == PageLayout::packed && (kv.dtype == Dtype::bf16 || bytes_of(kv.dtype) == 1) &&
         kv.S % 16 == 0 && kv.D % 32 == 0 && args.q_dtype == Dtype::f32 && args.soft_cap == 0 &&
         cpu_kernels() >= CpuKernels::avx512_bf16;
}

void use_packed_kernels(const PackedKernels& all) { kernels() = all; }

void packed_attention(const PagedAttentionArgs& args) {
  const PackedFunctions& functions = functions_in_use();
  const PackedPlan plan = plan_packed_attention(args, omp_get_max_threads(), functions.head_rows);
  const Bf16OfCodes codes =
      args.kv.dtype == Dtype::bf16 ? Bf16OfCodes() : bf16_of_codes(args.kv.dtype);
  const AlignedArray<float> stored = allocate_aligned<float>(
      static_cast<std::size_t>(plan.stored_states * packed_state_floats(args.kv.D)));
#pragma omp parallel if (plan.items.size() > 1)
  {
    const ScratchMemory memory(plan, args.kv.D, functions.number_bytes);
#pragma omp for schedule(dynamic, 1) nowait
    for (const TileSpans& item : plan.items)
      functions.attend_spans(args, codes, plan.tiles[item.tile], item.first_span, item.end_span,
                             memory.get(), stored.get());
    if (!plan.split_tiles.empty()) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
      for (const std::size_t tile : plan.split_tiles)
        functions.merge_spans(args, plan.tiles[tile], memory.get(), stored.get());
    }
  }
}

}  // namespace kvhive
