#include "tools/keeper/make_pool.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "config/machine_memory.hpp"
#include "config/process_limits.hpp"
#include "ipc/channel/board.hpp"
#include "pool/pool_layout.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {
namespace {

bool is_gpu(const ModelFacts& model) { return model.device == DeviceKind::cuda; }

/// Sets the options that the model and the GPU decide, so that all engines get the same values.
void fill_in(ResolvedOptions& options, const ModelFacts& model) {
  options.device = model.device;
  if (is_gpu(model))
    options.gpu_memory_sharing =
        model.gpu.memory_needs_its_maker ? GpuMemorySharing::ipc : GpuMemorySharing::vmm;
  if (!model.device_reason.empty())
    spdlog::info("device: {} ({})", to_string(model.device), model.device_reason);
  if (!model.gpu.sharing_reason.empty())
    spdlog::warn("the GPU's memory is shared by legacy IPC, and one more process keeps it: {}",
                 model.gpu.sharing_reason);
}

Expected<void> check_filter(const Options& options, const ModelFacts& model) {
  if (!is_gpu(model) || options.system_call_filter != SystemCallFilter::on) return {};
  return failure(Errc::bad_argument,
                 "system-call-filter: 'on' is not possible with engines on a GPU, because the "
                 "system calls of its driver are not known; use auto");
}

/// The host's memory, and how much of it the model takes.
MemoryFigures host_memory(const ModelFacts& model) {
  const MachineMemory machine = machine_memory();
  const std::size_t weights = is_gpu(model) ? 0 : model.weight_bytes;
  return {machine.total, machine.available, weights, model.engine_peak, machine.bound};
}

/// The same for the memory that the device tier is allocated from: the GPU's or the host's.
MemoryFigures device_memory(const ModelFacts& model, const MemoryFigures& host) {
  if (!is_gpu(model)) return host;
  return {model.gpu.total, model.gpu.available, model.weight_bytes, model.engine_peak, "the GPU"};
}

/// Memory of its own that a process of the daemon has at least. It is kept free, else the kernel
/// might end the keeper of a pool that just fits.
constexpr std::size_t kLeastOfAProcess = std::size_t{2} << 20;

/// Whether machine, cgroups and limits have room for the pool. Checked before anything is
/// allocated.
Expected<void> check_host_room(const MadePool& pool, const PoolLayout& layout,
                               const MemoryFigures& host, const Options& options) {
  const std::size_t mapped_device = pool.is_on_gpu() ? 0 : layout.device_bytes;
  const std::size_t whole = mapped_device + layout.host_bytes + layout.control_bytes +
                            layout.metadata_bytes + layout.tokens_bytes;
  const std::size_t of_processes = kLeastOfAProcess * (options.engines + 2);
  if (auto fits = check_room(whole + of_processes, host); !fits) return fits;
  const ProcessLimits limits = take_process_limits();
  const std::size_t locked = layout.control_bytes + layout.metadata_bytes + layout.tokens_bytes;
  if (options.lock_metadata)
    if (auto fits = check_locked_bytes(limits, locked); !fits) return fits;
  const std::size_t weights = pool.is_on_gpu() ? 0 : pool.model.weight_bytes;
  const std::size_t largest =
      std::max({mapped_device, layout.host_bytes, layout.metadata_bytes, layout.tokens_bytes});
  return check_bytes(limits, whole + weights, largest);
}

/// False = `stop` became readable.
Expected<bool> make_gpu_memory(MadePool& pool, const ResolvedOptions& options,
                               std::size_t arena_bytes, int stop) {
  auto made = pool.gpu_memory.make(options, arena_bytes, stop);
  if (!made) return forward_error(made);
  if (!*made) return false;
  pool.objects[std::size_t(PoolObject::device)] = std::move((*made)->arena);
  pool.gpu_weights = std::move((*made)->weights);
  return true;
}

}  // namespace

Expected<std::optional<MadePool>> make_pool(ResolvedOptions& options, const Domains& domains,
                                            int stop) {
  auto model = describe_model(options.asked, stop);
  if (!model) return forward_error(model);
  if (!*model) return std::optional<MadePool>();
  MadePool pool;
  pool.model = std::move(**model);
  if (auto possible = check_filter(options.asked, pool.model); !possible)
    return forward_error(possible);
  fill_in(options, pool.model);
  const MemoryFigures host = host_memory(pool.model);
  auto size = size_pool(options.asked, pool.model.device, pool.model.layout, pool.model.groups,
                        device_memory(pool.model, host), pool.model.positions);
  if (!size) return forward_error(size);
  pool.size = *size;
  options.max_model_len = size->max_model_len;
  auto limits = domains.block_limits(size->device_blocks - 1);  // without the null block
  if (!limits) return forward_error(limits);
  pool.geometry = {
      size->device_blocks,    size->host_blocks, options.asked.block_size, pool.model.layout,
      pool.model.fingerprint, pool.model.groups, pool.model.device,        *limits};
  const PoolLayout layout(pool.geometry);
  if (auto fits = check_host_room(pool, layout, host, options.asked); !fits)
    return forward_error(fits);
  auto objects = create_pool_objects(pool.geometry);
  if (!objects) return forward_error(objects);
  pool.objects = std::move(*objects);
  auto board = create_memory(kBoardName, kBoardBytes);
  if (!board) return forward_error(board);
  pool.board = std::move(*board);
  if (pool.is_on_gpu()) {
    auto made = make_gpu_memory(pool, options, layout.device_bytes, stop);
    if (!made) return forward_error(made);
    if (!*made) return std::optional<MadePool>();
  }
  return std::optional<MadePool>(std::move(pool));
}

}  // namespace kvhive
