#include "tools/keeper/make_pool.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "config/machine/machine_memory.hpp"
#include "config/machine/process_limits.hpp"
#include "config/machine/processor_quota.hpp"
#include "ipc/channel/board.hpp"
#include "pool/pool_layout.hpp"
#include "pool/pool_memory.hpp"
#include "tools/placement/engine_places.hpp"
#include "tools/placement/memory_policy.hpp"

namespace kvhive {
namespace {

bool is_gpu(const ModelFacts& model) { return model.device == DeviceKind::cuda; }

/// Sets the options that the model and the GPU decide, so that all engines get the same values.
void fill_in(ResolvedOptions& options, const ModelFacts& model) {
  options.device = model.device;
  options.cpu_kernels = model.cpu_kernels;
  if (is_gpu(model))
    options.gpu_memory_sharing =
        model.gpu.memory_needs_its_maker ? GpuMemorySharing::ipc : GpuMemorySharing::vmm;
  if (!model.device_reason.empty())
    spdlog::info("device: {} ({})", to_string(model.device), model.device_reason);
  if (!is_gpu(model)) spdlog::info("CPU kernels: {}", to_string(model.cpu_kernels));
  // A GPU's engines compute next to nothing on processors.
  if (is_gpu(model) && options.asked.cpu_bind.way == CpuBind::Way::automatic)
    for (EnginePlace& engine : options.places) engine.processors.clear();
  if (!model.gpu.sharing_reason.empty())
    spdlog::warn("the GPU's memory is shared by legacy IPC, and one more process keeps it: {}",
                 model.gpu.sharing_reason);
}

/// Decides where engines run. Until the result is destroyed, what is allocated and read lies where
/// they are: the weights' pages are read first by the processes that describe the models.
Expected<SpreadMemory> place(ResolvedOptions& options) {
  const CpuBind& bind = options.asked.cpu_bind;
  auto map = ProcessorMap::of_this_process();
  if (!map) return forward_error(map);
  auto places = place_engines(bind, all_engines(options.models), options.asked.threads, *map,
                              processor_quota());
  if (!places) return forward_error(places);
  if (!places->reason.empty()) spdlog::debug("engines are not bound: {}", places->reason);
  options.places = std::move(places->engines);
  if (bind.way == CpuBind::Way::none) return SpreadMemory::over({});
  const NodeList nodes = nodes_for(options.places, *map);
  auto spread = SpreadMemory::over(nodes);
  if (!spread)
    spdlog::warn("memory lies where the kernel puts it, not by turns on {} nodes: {}", nodes.size(),
                 spread.error().text);
  return spread ? std::move(spread) : SpreadMemory::over({});
}

Expected<void> check_filter(const Options& options, const ModelFacts& model) {
  if (!is_gpu(model) || options.system_call_filter != SystemCallFilter::on) return {};
  return failure(Errc::bad_argument,
                 "system-call-filter: 'on' is not possible with engines on a GPU, because the "
                 "system calls of its driver are not known; use auto");
}

std::size_t weight_bytes(std::span<const ModelFacts> models) {
  std::size_t sum = 0;
  for (const ModelFacts& model : models) sum += model.weight_bytes;
  return sum;
}

/// The mean over all engines.
std::size_t engine_peak(std::span<const ModelFacts> models, std::span<const HostedModel> served) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < models.size(); ++i) sum += models[i].engine_peak * served[i].engines;
  return sum / all_engines(served);
}

/// The host's memory, and how much of it the models take.
MemoryFigures host_memory(const MadePool& pool, const ResolvedOptions& options) {
  const MachineMemory machine = machine_memory();
  const std::size_t weights = is_gpu(pool.device_facts()) ? 0 : weight_bytes(pool.models);
  return {machine.total, machine.available, weights, engine_peak(pool.models, options.models),
          machine.bound};
}

/// The same for the memory that the device tier is allocated from: the GPU's or the host's.
MemoryFigures device_memory(const MadePool& pool, const MemoryFigures& host) {
  const ModelFacts& facts = pool.device_facts();
  if (!is_gpu(facts)) return host;
  return {facts.gpu.total, facts.gpu.available, weight_bytes(pool.models), host.engine_peak,
          "the GPU"};
}

/// Memory of its own that a process of the daemon has at least. It is kept free, else the kernel
/// might end the keeper of a pool that just fits.
constexpr std::size_t kLeastOfAProcess = std::size_t{2} << 20;

/// Of what lies in the host's memory.
std::size_t shared_bytes(const MadePool& pool, const PoolLayout& layout) {
  return (pool.is_on_gpu() ? 0 : layout.device_bytes) + layout.host_bytes + layout.control_bytes +
         layout.metadata_bytes + layout.tokens_bytes;
}

/// Whether machine, cgroups and limits have room for the pool. Checked before anything is
/// allocated.
Expected<void> check_host_room(const MadePool& pool, const PoolLayout& layout,
                               const MemoryFigures& host, const Options& options,
                               std::uint32_t engines) {
  const std::size_t mapped_device = pool.is_on_gpu() ? 0 : layout.device_bytes;
  const std::size_t whole = shared_bytes(pool, layout);
  const std::size_t of_processes = kLeastOfAProcess * (engines + 2);
  if (auto fits = check_room(whole + of_processes, host); !fits) return fits;
  const ProcessLimits limits = take_process_limits();
  const std::size_t locked = layout.control_bytes + layout.metadata_bytes + layout.tokens_bytes;
  if (options.lock_metadata)
    if (auto fits = check_locked_bytes(limits, locked); !fits) return fits;
  const std::size_t weights = pool.is_on_gpu() ? 0 : weight_bytes(pool.models);
  const std::size_t largest =
      std::max({mapped_device, layout.host_bytes, layout.metadata_bytes, layout.tokens_bytes});
  return check_bytes(limits, whole + weights, largest);
}

/// False = `stop` became readable.
Expected<bool> make_objects(MadePool& pool, const PoolLayout& layout, int stop) {
  constexpr std::size_t kMuch = std::size_t{1} << 30;
  if (const std::size_t bytes = shared_bytes(pool, layout); bytes >= kMuch)
    spdlog::info("taking {} of shared memory", format_bytes(bytes));
  auto objects = create_pool_objects(pool.geometry, [stop] {
    pollfd come{stop, POLLIN, 0};
    return poll(&come, 1, 0) <= 0;
  });
  if (!objects) return forward_error(objects);
  if (!*objects) return false;
  pool.objects = std::move(**objects);
  return true;
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

/// describe_model() of one of the models; errors name it if there are several.
Expected<std::optional<ModelFacts>> describe(const ResolvedOptions& options, std::size_t model,
                                             int stop, Depth depth) {
  const std::uint32_t threads = std::ranges::max(options.places, {}, &EnginePlace::threads).threads;
  auto facts =
      describe_model(options_of(options.asked, options.models, model), threads, stop, depth);
  if (facts || options.models.size() == 1) return facts;
  return failure(facts.error().code,
                 "model '" + options.models[model].name + "': " + facts.error().text);
}

/// Decides how many tokens a block of each model has, so that blocks are equal in bytes, and about
/// as full. False = `stop` became readable.
Expected<bool> choose_block_sizes(ResolvedOptions& options, int stop) {
  std::vector<HostedModel>& served = options.models;
  if (served.size() == 1) return true;
  std::vector<ModelFacts> models;
  std::size_t largest = 0;
  for (std::size_t m = 0; m < served.size(); ++m) {
    auto model = describe(options, m, stop, Depth::config);
    if (!model) return forward_error(model);
    if (!*model) return false;
    largest = std::max(largest, (*model)->layout.block_bytes());
    models.push_back(std::move(**model));
  }
  for (std::size_t m = 0; m < served.size(); ++m)
    if (served[m].block_size == 0)
      served[m].block_size = tokens_in(largest, models[m].layout, models[m].device);
  return true;
}

Expected<void> check_retention(const Options& asked, const ModelFacts& model) {
  const std::uint32_t interval = asked.prefix_cache_retention_interval.interval.value_or(0);
  if (interval % model.layout.block_size == 0) return {};
  return failure(Errc::bad_argument, "prefix-cache-retention-interval: '" +
                                         std::to_string(interval) + "' must be a multiple of the " +
                                         std::to_string(model.layout.block_size) +
                                         " tokens of a block of " + model.name);
}

/// "cuda (NVIDIA H100, GPU-1b2c)".
std::string device_text(const ModelFacts& model) {
  return std::string(to_string(model.device)) + " (" + model.device_reason +
         (is_gpu(model) ? ", " + model.gpu.uuid : "") + ")";
}

/// Each was asked for by itself, and a GPU may be free for one and taken for the next.
Expected<void> check_device(std::span<const ModelFacts> models) {
  for (const ModelFacts& model : models)
    if (model.device != models.front().device || model.gpu.uuid != models.front().gpu.uuid)
      return failure(Errc::unsupported, "device: " + models.front().name +
                                            " would be computed on " + device_text(models.front()) +
                                            ", " + model.name + " on " + device_text(model) +
                                            "; one pool has one device: use --device cpu, or "
                                            "start again");
  return {};
}

/// False = `stop` became readable.
Expected<bool> describe_models(MadePool& pool, const ResolvedOptions& options, int stop) {
  for (std::size_t m = 0; m < options.models.size(); ++m) {
    auto model = describe(options, m, stop, Depth::profile);
    if (!model) return forward_error(model);
    if (!*model) return false;
    if (auto fits = check_retention(options.asked, **model); !fits) return forward_error(fits);
    pool.models.push_back(std::move(**model));
  }
  if (auto same = check_device(pool.models); !same) return forward_error(same);
  return true;
}

void make_blocks_equal(std::vector<ModelFacts>& models) {
  std::vector<KvLayout*> layouts;
  for (ModelFacts& model : models) layouts.push_back(&model.layout);
  equalize(layouts);
  for (const ModelFacts& model : models)
    if (const KvLayout& kv = model.layout; kv.padding > kv.block_bytes() / 10)
      spdlog::warn("{} tokens of {} leave {} of a block's {} unused; {}", kv.block_size, model.name,
                   format_bytes(kv.padding), format_bytes(kv.block_bytes()),
                   is_gpu(model)
                       ? "on a GPU a block has a power of two of tokens: other models, or "
                         "a daemon for each, have less unused"
                       : "choose other block sizes (model-options)");
}

/// The geometry, and how long each model's sequences can be.
Expected<void> shape(MadePool& pool, ResolvedOptions& options, const Domains& domains) {
  const std::uint32_t blocks = pool.size.device_blocks - 1;  // without the null block
  auto limits = domains.block_limits(blocks);
  if (!limits) return forward_error(limits);
  if (auto fit = check_minimums(options.models, blocks); !fit) return fit;
  PoolGeometry& geometry = pool.geometry;
  geometry.device_blocks = pool.size.device_blocks;
  geometry.host_blocks = pool.size.host_blocks;
  geometry.device = pool.device_facts().device;
  geometry.cpu_kernels = options.cpu_kernels;
  geometry.limits = *limits;
  geometry.eviction_policy = options.asked.eviction_policy;
  geometry.life_stride = options.asked.life_stride(geometry.device_blocks);
  geometry.hash_algorithm = options.asked.prefix_caching_hash_algo;
  geometry.model_count = static_cast<std::uint32_t>(pool.models.size());
  std::uint32_t groups = 0;
  for (std::size_t m = 0; m < pool.models.size(); ++m) {
    ModelFacts& model = pool.models[m];
    HostedModel& served = options.models[m];
    model.groups.first = std::exchange(groups, groups + model.groups.count);
    geometry.models[m] = {model.layout.block_size, model.layout, model.fingerprint, model.groups};
    auto length = longest_sequence(options_of(options.asked, options.models, m), pool.size,
                                   model.layout, model.groups, model.positions);
    if (!length)
      return failure(
          length.error().code,
          (pool.models.size() > 1 ? "model '" + served.name + "': " : "") + length.error().text);
    model.max_model_len = served.max_model_len = *length;
    if (model.layout.block_size >= *length)
      spdlog::warn(
          "{}: a block has {} tokens and a sequence at most {}, so none of its prompts is "
          "cached; give it a smaller block-size (model-options), or a daemon of its own",
          served.name, model.layout.block_size, *length);
    if (served.min_blocks.is_given()) geometry.model_minimums[m] = served.min_blocks.of(blocks);
  }
  return {};
}

}  // namespace

std::string MadePool::names() const {
  std::string text;
  for (const ModelFacts& model : models) text += (text.empty() ? "" : ", ") + model.name;
  return text;
}

std::optional<ModelId> MadePool::find(const std::string& name) const {
  const auto found = std::ranges::find(models, name, &ModelFacts::name);
  if (found == models.end()) return std::nullopt;
  return ModelId{static_cast<std::uint8_t>(found - models.begin())};
}

Expected<std::optional<MadePool>> make_pool(ResolvedOptions& options, const Domains& domains,
                                            int stop) {
  MadePool pool;
  auto served = hosted_models(options.asked);
  if (!served) return forward_error(served);
  options.models = std::move(*served);
  const auto spread = place(options);
  if (!spread) return forward_error(spread);
  auto chosen = choose_block_sizes(options, stop);
  if (!chosen) return forward_error(chosen);
  if (!*chosen) return std::optional<MadePool>();
  auto described = describe_models(pool, options, stop);
  if (!described) return forward_error(described);
  if (!*described) return std::optional<MadePool>();
  make_blocks_equal(pool.models);
  const ModelFacts& facts = pool.device_facts();
  if (auto possible = check_filter(options.asked, facts); !possible) return forward_error(possible);
  fill_in(options, facts);
  const MemoryFigures host = host_memory(pool, options);
  Options sized = options.asked;
  sized.engines = all_engines(options.models);
  auto size = size_pool(sized, facts.device, facts.layout.block_bytes(), device_memory(pool, host));
  if (!size) return forward_error(size);
  pool.size = *size;
  if (auto shaped = shape(pool, options, domains); !shaped) return forward_error(shaped);
  const PoolLayout layout(pool.geometry);
  if (auto fits = check_host_room(pool, layout, host, options.asked, sized.engines); !fits)
    return forward_error(fits);
  auto objects = make_objects(pool, layout, stop);
  if (!objects) return forward_error(objects);
  if (!*objects) return std::optional<MadePool>();
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
