#pragma once
// The CUDA backend. Takes the argument structs of kernels/*.hpp with device pointers in them. Each
// function starts its kernels on the stream and returns. What a kernel cannot compute is refused
// with Errc::unsupported before anything is started.

#include <cstddef>
#include <cstdint>

#include "base/expected.hpp"
#include "kernels/block_copy.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/cuda/split_plan.hpp"
#include "kernels/expert_kernels.hpp"
#include "kernels/merge_states.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/row_product.hpp"
#include "kernels/sampling.hpp"

struct CUstream_st;

namespace kvhive {

using CudaStream = CUstream_st*;  ///< cudaStream_t

/// Layout `rows`, any strides. Fastest if rows are aligned to four elements.
[[nodiscard]] Expected<void> cache_write_cuda(const CacheWriteArgs& args, CudaStream stream);

/// Also gathers into, and scatters from, host memory that is mapped on the device. Fastest if
/// addresses, strides and bytes are multiples of 16.
[[nodiscard]] Expected<void> block_copy_cuda(const BlockCopyArgs& args, CudaStream stream);

/// Swap: copies blocks between device memory and page-locked host memory. Copies of at least
/// `batched_from` bytes go to the copy engines as one batch (neighbouring blocks as one copy),
/// which leaves the SMs to the model. Smaller copies go through block_copy_cuda, because starting
/// each of them would cost more than its bytes (vLLM PR #42212: 4..24 KiB run at a tenth of the
/// link's speed); for these, host memory must be mapped on the device. `pairs` are in page-locked
/// host memory and must stay unchanged until the stream has passed. Sources are read in the
/// stream's order, in both directions: a copy that may run ahead would read blocks that a kernel
/// has not written yet.
[[nodiscard]] Expected<void> swap_blocks_cuda(const BlockCopyArgs& args, std::size_t batched_from,
                                              CudaStream stream);

[[nodiscard]] Expected<void> merge_states_cuda(const MergeStatesArgs& args, CudaStream stream);

/// `work` is plan_splits() of the same batch, copied to the device; one plan serves all layers with
/// the same window. D is 8..256 in steps of 8, S a power of two, layout `rows`, aligned to 16 bytes
/// (8 bytes for 8-bit elements). Runs on tensor cores from three query heads per kv head on, if q
/// has the cache's 16-bit type, or if q has 16 bits and the cache has 8-bit elements in rows
/// aligned to 16 bytes. A token's bits are the same alone, in a batch, in prefill and in a cascade.
[[nodiscard]] Expected<void> paged_attention_cuda(const PagedAttentionArgs& args,
                                                  const AttentionWork& work, CudaStream stream);

/// Rows are aligned to 16 bytes. `work` is plan_splits() of the same batch; a token's bits do not
/// depend on the batch. Runs on tensor cores if q is bf16 and there are more than two heads; rows
/// of bf16 then need the shared memory of sm_90.
[[nodiscard]] Expected<void> paged_mla_cuda(const PagedMlaArgs& args, const AttentionWork& work,
                                            CudaStream stream);
[[nodiscard]] Expected<void> mla_write_cuda(const MlaWriteArgs& args, CudaStream stream);

/// The operations between matrix products. Rows are multiples of four elements, and aligned to four
/// elements (heads: to two).
[[nodiscard]] Expected<void> embed_cuda(const EmbedArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> add_rms_norm_cuda(const AddRmsNormArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> rotate_cuda(const RotateArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> rotate_pairs_cuda(const RotatePairsArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> tune_queries_cuda(const TuneQueriesArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> gate_multiply_cuda(const GateMultiplyArgs& args, CudaStream stream);
[[nodiscard]] Expected<void> soft_cap_cuda(const SoftCapArgs& args, CudaStream stream);

/// bf16 and f16 run on tensor cores: rows of x and w are multiples of eight elements, aligned to 16
/// bytes. f32 has one order of additions over K and takes any K. A row's bits depend on that row
/// alone. At most 65,535 products in a call.
[[nodiscard]] Expected<void> row_product_cuda(const RowProductArgs& args, CudaStream stream);

/// K is a multiple of four, rows of x and A are aligned to four elements. A row's bits depend on
/// that row and its adapter alone. Grids depend on T, N and R alone, so steps can be recorded as
/// graphs.
[[nodiscard]] Expected<void> adapter_product_cuda(const AdapterProductArgs& args,
                                                  CudaStream stream);

/// A mixture of experts. Grids depend on T, k, E and N alone, so steps can be recorded as graphs;
/// E is at most 1024, k at most 32. Sorting gives the same order every time.
[[nodiscard]] Expected<void> choose_experts_cuda(const ChooseExpertsArgs& args, CudaStream stream);
/// With T 0, writes zeros to `first`.
[[nodiscard]] Expected<void> sort_by_expert_cuda(const SortByExpertArgs& args, CudaStream stream);
/// Alignment as for row_product_cuda, which gives a row the same bits.
[[nodiscard]] Expected<void> expert_product_cuda(const ExpertProductArgs& args, CudaStream stream);
/// Rows are multiples of four elements, aligned to four elements.
[[nodiscard]] Expected<void> mix_experts_cuda(const MixExpertsArgs& args, CudaStream stream);

/// Adds weights as whole numbers, so that results do not depend on the order of additions. Tokens
/// are the reference's where its margin is above 1e-6. `choices` are on the device and not checked.
[[nodiscard]] Expected<void> sample_cuda(const SampleArgs& args, CudaStream stream);

}  // namespace kvhive
