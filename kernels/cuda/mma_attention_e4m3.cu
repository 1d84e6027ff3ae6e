#include "kernels/cuda/mma_attention.cuh"

namespace kvhive::device {

template Expected<void> mma_attention_of<Dtype::e4m3>(const PagedAttentionArgs&,
                                                      const AttentionWork&, CudaStream);

}  // namespace kvhive::device
