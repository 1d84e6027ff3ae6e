#pragma once
// The CUDA backend: the argument structs of kernels/*.hpp, with device pointers in them. Each
// function starts its kernels on the stream and returns; what it does not do it refuses by
// Errc::unsupported, and starts nothing then.

#include <cstddef>
#include <cstdint>

#include "base/expected.hpp"
#include "kernels/block_copy.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/cuda/split_plan.hpp"
#include "kernels/merge_states.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/row_product.hpp"
#include "kernels/sampling.hpp"

struct CUstream_st;

namespace kvhive {

using CudaStream = CUstream_st*;  ///< cudaStream_t

/// Layout `rows`, any strides; fastest where rows are aligned to four elements.
Expected<void> cache_write_cuda(const CacheWriteArgs& args, CudaStream stream);

/// Also gathers into and scatters from host memory that is mapped on the device. Fastest where
/// addresses, strides and bytes are multiples of 16.
Expected<void> block_copy_cuda(const BlockCopyArgs& args, CudaStream stream);

/// Swap: the same between device memory and page-locked host memory. Pieces of `batched_from` bytes
/// and more go to the copy engines as one batch, neighbours as one copy, and leave the SMs to the
/// model; smaller ones, for which a copy each costs more than its bytes (vLLM PR #42212: 4..24 KiB
/// at a tenth of the link), go through block_copy_cuda: the memory must be mapped then. `pairs` are
/// on the host, page-locked, and stay until the stream has passed. Sources are read in the stream's
/// order, both ways: a copy that is allowed to run ahead reads what no kernel has written yet.
Expected<void> swap_blocks_cuda(const BlockCopyArgs& args, std::size_t batched_from,
                                CudaStream stream);

Expected<void> merge_states_cuda(const MergeStatesArgs& args, CudaStream stream);

/// `work` is plan_splits() of the same batch, on the device; one plan serves all layers of a kind.
/// Head sizes 8..256 in steps of 8, S a power of two; layout `rows`,
/// aligned to 16 bytes (8 for 8-bit elements). From three query heads per kv head on by tensor
/// cores, if q is of the cache's 16-bit type, or of 16 bits over rows of 8-bit elements aligned to
/// 16 bytes. A token's bits are the same alone, in a batch, in prefill and in a cascade.
Expected<void> paged_attention_cuda(const PagedAttentionArgs& args, const AttentionWork& work,
                                    CudaStream stream);

/// Rows aligned to 16 bytes. `work` is plan_splits() of the same batch; bits as above. By tensor
/// cores if q is bf16 and there are more than two heads; rows of bf16 need sm_90's shared memory
/// then.
Expected<void> paged_mla_cuda(const PagedMlaArgs& args, const AttentionWork& work,
                              CudaStream stream);
Expected<void> mla_write_cuda(const MlaWriteArgs& args, CudaStream stream);

/// Between the matrix products. Rows are multiples of four elements, and aligned to as many (heads:
/// to two).
Expected<void> embed_cuda(const EmbedArgs& args, CudaStream stream);
Expected<void> add_rms_norm_cuda(const AddRmsNormArgs& args, CudaStream stream);
Expected<void> rotate_cuda(const RotateArgs& args, CudaStream stream);
Expected<void> silu_multiply_cuda(const SiluMultiplyArgs& args, CudaStream stream);

/// By tensor cores; bf16 or f16, rows of multiples of eight elements, aligned to 16 bytes.
Expected<void> row_product_cuda(const RowProductArgs& args, CudaStream stream);

/// Weights are added as whole numbers, so that no order shows; tokens are the reference's where its
/// margin is above 1e-6. Of `choices` nothing is checked: they are on the device.
Expected<void> sample_cuda(const SampleArgs& args, CudaStream stream);

}  // namespace kvhive
