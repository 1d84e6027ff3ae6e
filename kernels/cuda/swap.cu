#include "kernels/block_copy.hpp"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

/// Makes the list of copies; pairs that are neighbours in both arenas become one copy.
struct Copies {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;

  explicit Copies(const BlockCopyArgs& args) {
    for (std::size_t i = 0; i < args.pairs_count; ++i) {
      std::byte* destination =
          args.destination + args.pairs[i].destination * args.destination_stride;
      const std::byte* source = args.source + args.pairs[i].source * args.source_stride;
      if (!to.empty() && static_cast<std::byte*>(to.back()) + bytes.back() == destination &&
          static_cast<const std::byte*>(from.back()) + bytes.back() == source) {
        bytes.back() += args.bytes;
        continue;
      }
      to.push_back(destination);
      from.push_back(source);
      bytes.push_back(args.bytes);
    }
  }
};

}  // namespace

Expected<void> swap_blocks_cuda(const BlockCopyArgs& args, std::size_t batched_from,
                                CudaStream stream) {
  if (args.pairs_count == 0 || args.bytes == 0) return {};
  if (args.bytes > args.source_stride || args.bytes > args.destination_stride)
    return failure(Errc::bad_argument,
                   "swap: " + std::to_string(args.bytes) + " bytes of blocks that are " +
                       std::to_string(args.source_stride) + " and " +
                       std::to_string(args.destination_stride) + " bytes apart");
  if (args.bytes < batched_from) return block_copy_cuda(args, stream);
  const Copies copies(args);
  return device::copy_batch(copies.to, copies.from, copies.bytes, stream);
}

}  // namespace kvhive
