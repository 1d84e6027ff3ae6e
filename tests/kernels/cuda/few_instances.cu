// Attention kernels for instrumented builds: only the few shapes that sanitized_test.cpp uses,
// since a sanitizer takes minutes to compile all of them.

#include "kernels/cuda/mma_attention.cuh"
#include "kernels/cuda/simt_attention.cuh"

namespace kvhive::device {
namespace {

Expected<void> not_built(const PagedAttentionArgs& args) {
  return failure(Errc::unsupported, "not in this build: " + std::string(to_string(args.kv.dtype)) +
                                        ", head size " + std::to_string(args.kv.D));
}

}  // namespace

template <>
Expected<void> mma_attention_of<Dtype::bf16>(const PagedAttentionArgs& args,
                                             const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 64 ? launch_mma<Dtype::bf16, 64>(args, work, stream) : not_built(args);
}
template <>
Expected<void> mma_attention_of<Dtype::f16>(const PagedAttentionArgs& args,
                                            const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 80 ? launch_mma<Dtype::f16, 80>(args, work, stream) : not_built(args);
}
template <>
Expected<void> mma_attention_of<Dtype::int8>(const PagedAttentionArgs& args,
                                             const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 80 ? launch_mma<Dtype::int8, 80>(args, work, stream) : not_built(args);
}
template <>
Expected<void> mma_attention_of<Dtype::e4m3>(const PagedAttentionArgs& args, const AttentionWork&,
                                             CudaStream) {
  return not_built(args);
}
template <>
Expected<void> mma_attention_of<Dtype::e5m2>(const PagedAttentionArgs& args, const AttentionWork&,
                                             CudaStream) {
  return not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::bf16>(const PagedAttentionArgs& args,
                                              const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 64 ? launch_simt<Dtype::bf16, 8, 8, 2>(args, work, stream) : not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::e4m3>(const PagedAttentionArgs& args,
                                              const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 80 ? launch_simt<Dtype::e4m3, 16, 8, 1>(args, work, stream) : not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::int8>(const PagedAttentionArgs& args,
                                              const AttentionWork& work, CudaStream stream) {
  return args.kv.D == 120 ? launch_simt<Dtype::int8, 8, 16, 2>(args, work, stream)
                          : not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::f32>(const PagedAttentionArgs& args, const AttentionWork&,
                                             CudaStream) {
  return not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::f16>(const PagedAttentionArgs& args, const AttentionWork&,
                                             CudaStream) {
  return not_built(args);
}
template <>
Expected<void> simt_attention_of<Dtype::e5m2>(const PagedAttentionArgs& args, const AttentionWork&,
                                              CudaStream) {
  return not_built(args);
}

}  // namespace kvhive::device
