#include "kernels/cuda/simt_attention.cuh"

namespace kvhive::device {

template Expected<void> simt_attention_of<Dtype::bf16>(const PagedAttentionArgs&,
                                                       const AttentionWork&, bool, CudaStream);

}  // namespace kvhive::device
