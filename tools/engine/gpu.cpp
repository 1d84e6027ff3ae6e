#include "tools/engine/gpu.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "actors/end_engine.hpp"
#include "actors/gpu/copy_calibration.hpp"
#include "actors/gpu/device_swapper.hpp"
#include "actors/gpu/gpu_runner.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "models/gpu/gpu_support.hpp"
#include "models/gpu/gpu_transformer.hpp"
#include "tools/engine/gpu_memory.hpp"
#include "tools/engine/model.hpp"

namespace kvhive {
namespace {

/// Device memory, in bytes, that a CUDA context, its kernels and cuBLASLt take in addition to what
/// the engine allocates.
constexpr std::size_t kContextBytes = std::size_t{768} << 20;
/// Device memory, in bytes, of one layer in one recorded decode step (a CUDA graph): a dozen
/// kernels with their arguments. An upper estimate, not measured.
constexpr std::size_t kGraphBytesPerLayer = std::size_t{64} << 10;

/// Refuses models and options that the kernels in kernels/cuda do not support, so that the engine
/// fails at its start and not at a request.
Expected<void> check_supported(const Options& options, const ModelConfig& config) {
  if (auto supported = check_gpu_model(config); !supported) return supported;
  if (!std::has_single_bit(options.block_size))
    return failure(Errc::bad_argument,
                   "block-size: '" + std::to_string(options.block_size) +
                       "' must be a power of two on a GPU; 16 is usual (of one of "
                       "several models: model-options)");
  if (static_cast<std::uint32_t>(config.attention_chunk) % options.block_size != 0)
    return failure(Errc::bad_argument,
                   "block-size: '" + std::to_string(options.block_size) +
                       "' does not divide the model's attention_chunk_size of " +
                       std::to_string(config.attention_chunk) +
                       ", as it must on a GPU; give it a smaller one, or use --device cpu");
  if (!options.batch_invariant || config.dtype == Dtype::f32) return {};
  for (const auto width :
       {config.hidden_size, config.intermediate_size, config.heads * config.head_size})
    if (width % 8 != 0)
      return failure(Errc::unsupported,
                     "batch-invariant: rows of " + std::to_string(width) +
                         " elements are not a multiple of 8; use --device cpu, or leave "
                         "batch-invariant out");
  return {};
}

GpuLimits limits_of(const Options& options, const ModelConfig& config,
                    const GpuAdapters& adapters) {
  const std::uint32_t length = options.max_model_len != 0
                                   ? options.max_model_len
                                   : static_cast<std::uint32_t>(config.max_position_embeddings);
  const auto blocks =
      static_cast<std::int32_t>((length + options.block_size - 1) / options.block_size);
  GpuLimits limits;
  limits.tokens = static_cast<std::int32_t>(options.max_num_batched_tokens);
  limits.sequences = static_cast<std::int32_t>(options.max_num_seqs);
  limits.logit_rows = static_cast<std::int32_t>(options.most_sampled_rows());
  limits.blocks = blocks;
  limits.kv_tokens = blocks * static_cast<std::int32_t>(options.block_size);
  limits.likeliest = static_cast<std::int32_t>(kMostLogprobs);
  limits.adapter_rank = adapters.most_rank();
  if (options.enforce_eager) limits.graphs = 0;
  limits.is_batch_invariant = options.batch_invariant;
  return limits;
}

/// Copies by swap_blocks_cuda. If a copy cannot be started, the device is asked for the reason,
/// because the error of a copy does not tell whether the device is lost.
CopyOnDevice copies_on(Device& device, std::size_t batched_from) {
  return [&device, batched_from](const BlockCopyArgs& args, DeviceStream stream) -> Expected<void> {
    auto started = swap_blocks_cuda(args, batched_from, stream);
    if (started) return started;
    auto alive = device.free_bytes();
    if (!alive && alive.error().code == Errc::device_lost) return forward_error(alive);
    return started;
  };
}

constexpr std::size_t kAlwaysBatched = 0;
constexpr std::size_t kNeverBatched = std::numeric_limits<std::size_t>::max();

/// Chooses the copies that the swapper uses. Between device and host, the faster way is measured.
/// Copies within the device always use a kernel, which reaches the memory's full bandwidth for
/// pieces of any size.
Expected<SwapCopies> fastest_copies(Device& device, const PoolGeometry& geometry, ModelId model) {
  const CopyOnDevice batched = copies_on(device, kAlwaysBatched);
  const CopyOnDevice by_kernel = copies_on(device, kNeverBatched);
  if (geometry.host_blocks == 0) return SwapCopies{batched, by_kernel};
  auto batched_from = calibrate_copies(
      device, LayerParts(geometry[model].kv, SwapLimits{}.part_bytes).least_bytes(), by_kernel,
      batched);
  if (!batched_from) return forward_error(batched_from);
  return SwapCopies{copies_on(device, *batched_from), by_kernel};
}

/// Device memory, in bytes, that an engine takes in addition to the weights and the arena.
std::size_t engine_bytes(const Options& options, const ModelConfig& config,
                         const GpuAdapters& adapters, const DeviceFacts& facts) {
  const GpuLimits limits = limits_of(options, config, adapters);
  const std::size_t aside = std::min(options.swap_space, SwapLimits{}.aside_bytes);
  const std::size_t graphs = limits.graphs * config.layers * kGraphBytesPerLayer;
  return GpuTransformer::device_bytes(config, limits, group_layers(config)) + aside + graphs +
         std::min(kContextBytes, facts.total_bytes / 16);
}

}  // namespace

Expected<GpuFigures> gpu_figures(Device& device, const Options& options,
                                 const ModelConfig& config) {
  if (auto supported = check_supported(options, config); !supported)
    return forward_error(supported);
  auto available = device.free_bytes();
  if (!available) return forward_error(available);
  const auto files = open_adapters(options, config);
  if (!files) return forward_error(files);
  const GpuAdapters adapters = adapters_behind(config, *files);
  const DeviceFacts& facts = device.facts();
  return GpuFigures{facts.total_bytes, *available, gpu_weight_bytes(adapters, device),
                    engine_bytes(options, config, adapters, facts)};
}

Expected<std::unique_ptr<GpuParts>> attach_gpu(std::unique_ptr<Device> device,
                                               const Options& options, const ModelConfig& config,
                                               PoolMemory& memory, ModelId model,
                                               const PoolFds& fds, const UniqueFd& weights) {
  if (auto supported = check_supported(options, config); !supported)
    return forward_error(supported);
  auto attached = std::make_unique<GpuParts>();
  GpuParts& parts = *attached;
  parts.device = std::move(device);
  const PoolLayout layout(memory.geometry());
  const auto map = [&](SharedDeviceMemory& into, const UniqueFd& fd, std::size_t bytes) {
    auto mapped = SharedDeviceMemory::map(*parts.device, fd.get(), bytes);
    if (mapped) into = std::move(*mapped);
    return mapped.map([](const SharedDeviceMemory&) {});
  };
  const UniqueFd& arena = fds[std::size_t(PoolObject::device)];
  const UniqueFd& host = fds[std::size_t(PoolObject::host)];
  if (auto mapped = map(parts.arena, arena, layout.device_bytes); !mapped)
    return forward_error(mapped);
  const auto files = open_adapters(options, config);
  if (!files) return forward_error(files);
  const GpuAdapters adapters = adapters_behind(config, *files);
  if (auto mapped = map(parts.weights, weights, gpu_weight_bytes(adapters, *parts.device)); !mapped)
    return forward_error(mapped);
  memory.set_device_arena(parts.arena.data());
  if (layout.host_bytes != 0) {
    auto locked = LockedPages::lock(*parts.device, memory.arena(Tier::host), layout.host_bytes,
                                    memory.geometry().block_bytes(), host.get());
    if (!locked) return forward_error(locked);
    parts.host_arena = std::move(*locked);
  }
  auto eraser = OrderedStream::open(*parts.device);
  if (!eraser) return forward_error(eraser);
  parts.eraser = std::move(*eraser);
  parts.erase = [&parts,
                 block_bytes = memory.geometry().block_bytes()](std::span<const BlockId> blocks) {
    auto zeroed = zero_blocks(*parts.device, parts.eraser, parts.arena.data(), block_bytes, blocks);
    if (!zeroed)
      end_engine("zeroing blocks",
                 zeroed.error());  // a block that is not zeroed must not be handed out
  };

  auto copy = fastest_copies(*parts.device, memory.geometry(), model);
  if (!copy) return forward_error(copy);
  auto swapper = DeviceSwapper::create(*parts.device, memory, std::move(*copy), {}, model);
  if (!swapper) return forward_error(swapper);
  auto transformer =
      GpuTransformer::create(*parts.device, config, parts.weights.data(),
                             limits_of(options, config, adapters), group_layers(config), adapters);
  if (!transformer) return forward_error(transformer);
  const KvLayout& kv = memory.geometry()[model].kv;
  parts.runner =
      std::make_unique<GpuRunner>(std::move(*transformer), **swapper,
                                  copies_on(*parts.device, kAlwaysBatched), parts.arena.data(), kv);
  parts.swapper = std::move(*swapper);
  return attached;
}

}  // namespace kvhive
