#include "kernels/block_copy.hpp"

#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace {

using device::Bytes16;

constexpr unsigned kThreads = 256;
constexpr unsigned kWordsPerThread = 4;  ///< loads in flight per thread
constexpr unsigned kMostRounds = 16;
constexpr std::size_t kEnoughBlocks = 4096;  ///< of threads, to keep a GPU busy

/// Block of threads i copies part i % parts of pair i / parts, in `rounds` pieces. More rounds read
/// fewer pairs, which may lie in host memory.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_pieces(const __grid_constant__ BlockCopyArgs args, unsigned parts, unsigned rounds) {
  constexpr std::size_t kPiece = kThreads * kWordsPerThread;
  const BlockPair pair = args.pairs[blockIdx.x / parts];
  const auto* source =
      reinterpret_cast<const Word*>(args.source + pair.source * args.source_stride);
  auto* destination =
      reinterpret_cast<Word*>(args.destination + pair.destination * args.destination_stride);
  const std::size_t words = args.bytes / sizeof(Word);
  std::size_t first = std::size_t{blockIdx.x % parts} * rounds * kPiece + threadIdx.x;
  for (unsigned round = 0; round < rounds; ++round, first += kPiece) {
    Word moved[kWordsPerThread];
#pragma unroll
    for (unsigned i = 0; i < kWordsPerThread; ++i)
      if (first + i * kThreads < words) moved[i] = source[first + i * kThreads];
#pragma unroll
    for (unsigned i = 0; i < kWordsPerThread; ++i)
      if (first + i * kThreads < words) destination[first + i * kThreads] = moved[i];
  }
}

template <class Word>
Expected<void> copy_words(const BlockCopyArgs& args, CudaStream stream) {
  constexpr std::size_t kPiece = sizeof(Word) * kThreads * kWordsPerThread;
  const std::size_t pieces = (args.bytes + kPiece - 1) / kPiece;
  std::size_t rounds = 1;
  while (rounds < kMostRounds && pieces * args.pairs_count / (2 * rounds) >= kEnoughBlocks)
    rounds *= 2;
  const std::size_t parts = (pieces + rounds - 1) / rounds;
  const std::size_t blocks = parts * args.pairs_count;
  if (blocks > 0x7fffffff)
    return failure(Errc::unsupported,
                   "block copy: " + std::to_string(blocks) + " parts, a launch takes 2147483647");
  return device::launch(copy_pieces<Word>, dim3{static_cast<unsigned>(blocks), 1, 1},
                        dim3{kThreads, 1, 1}, 0, stream, args, static_cast<unsigned>(parts),
                        static_cast<unsigned>(rounds));
}

}  // namespace

Expected<void> block_copy_cuda(const BlockCopyArgs& args, CudaStream stream) {
  if (args.pairs_count == 0 || args.bytes == 0) return {};
  const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(args.source) |
                             reinterpret_cast<std::uintptr_t>(args.destination) | args.bytes |
                             args.source_stride | args.destination_stride;
  return all % sizeof(Bytes16) == 0 ? copy_words<Bytes16>(args, stream)
                                    : copy_words<std::uint8_t>(args, stream);
}

}  // namespace kvhive
