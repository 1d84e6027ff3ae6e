#include "actors/gpu/copy_calibration.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "base/stop_watch.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive {
namespace {

/// Pieces of this many bytes and more always use the copy engines. Chosen without measurement.
constexpr std::size_t kCopyEnginesFrom = std::size_t{1} << 20;
constexpr std::size_t kScratchBytes = std::size_t{8} << 20;  ///< on the device, and on the host
constexpr std::size_t kMostPieces = 1024;                    ///< as many as a large step copies
constexpr int kRuns = 4;                                     ///< the first run only warms up
constexpr double kClearly = 1.1;  ///< the kernel is used if it is faster by this factor

/// Returns the seconds of the fastest run.
Expected<double> measure(const CopyOnDevice& copy, const BlockCopyArgs& args,
                         const OrderedStream& stream) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const StopWatch watch;
    auto done = copy(args, stream.handle());
    if (done) done = stream.finish();
    if (!done) return forward_error(done);
    best = run == 0 ? watch.seconds() : std::min(best, watch.seconds());
  }
  return best;
}

Expected<CopyTimes> measure(const CopyOnDevice& copy, std::byte* host, std::byte* device,
                            std::size_t piece_bytes, std::span<const BlockPair> pairs,
                            const OrderedStream& stream) {
  auto out = measure(copy, whole_blocks(device, host, piece_bytes, pairs), stream);
  if (!out) return forward_error(out);
  auto in = measure(copy, whole_blocks(host, device, piece_bytes, pairs), stream);
  if (!in) return forward_error(in);
  return CopyTimes{*out, *in};
}

/// Fills the pairs so that each uses another slot of each arena, in random order: pairs that follow
/// one another are far apart in both arenas.
void scatter(std::span<BlockPair> pairs) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> order(pairs.size());
  std::iota(order.begin(), order.end(), 0);
  for (const auto slot : {&BlockPair::source, &BlockPair::destination}) {
    std::ranges::shuffle(order, random);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i].*slot = order[i];
  }
}

}  // namespace

bool kernel_pays(const CopyTimes& kernel, const CopyTimes& batch) {
  return (kernel.out + kernel.in) * kClearly <= batch.out + batch.in;
}

Expected<std::size_t> calibrate_copies(Device& device, std::size_t piece_bytes,
                                       const CopyOnDevice& by_kernel,
                                       const CopyOnDevice& by_batch) {
  if (piece_bytes >= kCopyEnginesFrom) return 0;
  const std::size_t count =
      std::min(kScratchBytes / (piece_bytes + sizeof(BlockPair)), kMostPieces);
  auto host = StagingBuffer::allocate(device, kScratchBytes);
  if (!host) return forward_error(host);
  auto scratch = DeviceBuffer::allocate(device, kScratchBytes);
  if (!scratch) return forward_error(scratch);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  // The pairs lie after the pieces in page-locked memory, where the device can read them.
  const std::span pairs(reinterpret_cast<BlockPair*>(host->data() + kScratchBytes) - count, count);
  scatter(pairs);
  const auto times_of = [&](const CopyOnDevice& copy) {
    return measure(copy, host->data(), scratch->data(), piece_bytes, pairs, *stream);
  };
  auto kernel = times_of(by_kernel);
  if (!kernel) return forward_error(kernel);
  auto batch = times_of(by_batch);
  if (!batch) return forward_error(batch);

  const bool pays = kernel_pays(*kernel, *batch);
  const auto speed = [bytes = static_cast<double>(count * piece_bytes)](double seconds) {
    return bytes / seconds / 1e9;
  };
  spdlog::info(
      "swaps in pieces of {}: a kernel copies {:.1f} GB/s out and {:.1f} in, the copy engines "
      "{:.1f} "
      "and {:.1f}; using {}",
      format_bytes(piece_bytes), speed(kernel->out), speed(kernel->in), speed(batch->out),
      speed(batch->in), pays ? "the kernel" : "the copy engines");
  return pays ? kCopyEnginesFrom : 0;
}

}  // namespace kvhive
