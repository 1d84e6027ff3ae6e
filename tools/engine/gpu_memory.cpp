#include "tools/engine/gpu_memory.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/round_up.hpp"
#include "config/models/hosted_models.hpp"
#include "device/device_memory.hpp"
#include "ipc/protocol.hpp"
#include "models/config/load_model_config.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "models/safetensors.hpp"
#include "tools/engine/model.hpp"
#include "tools/program/progress_bar.hpp"

namespace kvhive {
namespace {

/// The descriptors: of the arena, then of each model's weights.
using MadeMemory = std::vector<UniqueFd>;

/// A model, and where its tensors come from.
struct Source {
  HostedModel hosted;
  ModelConfig config;
  SafetensorsDirectory files;
  std::vector<LoraFile> adapter_files;
  GpuAdapters adapters;

  /// \param options  of this model alone (options_of())
  static Expected<Source> open(const Options& options, const HostedModel& hosted) {
    auto config = load_model_config(hosted.directory);
    if (!config) return forward_error(config);
    auto files = SafetensorsDirectory::open(hosted.directory);
    if (!files) return forward_error(files);
    auto adapter_files = open_adapters(options, *config);
    if (!adapter_files) return forward_error(adapter_files);
    GpuAdapters adapters = adapters_behind(*config, *adapter_files);
    return Source{hosted, std::move(*config), std::move(*files), std::move(*adapter_files),
                  std::move(adapters)};
  }
};

Expected<void> load(Device& device, const Source& model, const UniqueFd& memory) {
  auto weights =
      SharedDeviceMemory::map(device, memory.get(), gpu_weight_bytes(model.adapters, device));
  if (!weights) return forward_error(weights);
  ProgressBar bar("loading " + model.hosted.name);
  return upload_weights(device, model.config, model.files, weights->data(),
                        [&](std::size_t done, std::size_t total) { bar.show(done, total); })
      .and_then(
          [&] { return model.adapters.upload(device, model.adapter_files, weights->data()); });
}

Expected<void> zero(Device& device, const UniqueFd& memory, std::size_t bytes) {
  auto mapped = SharedDeviceMemory::map(device, memory.get(), bytes);
  if (!mapped) return forward_error(mapped);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  auto zeroed = device.fill(mapped->data(), std::byte{0}, bytes, stream->handle());
  return zeroed ? stream->finish() : zeroed;
}

Expected<MadeMemory> make_memory(Device& device, const Options& options, std::size_t arena_bytes) {
  auto models = hosted_models(options);
  if (!models) return forward_error(models);
  std::vector<Source> sources;
  std::vector<std::size_t> sizes{arena_bytes};
  for (std::size_t m = 0; m < models->size(); ++m) {
    auto source = Source::open(options_of(options, *models, m), (*models)[m]);
    if (!source) return forward_error(source);
    sizes.push_back(gpu_weight_bytes(source->adapters, device));
    sources.push_back(std::move(*source));
  }
  // Files are open and there is room for all before any weights are read: who is refused does not
  // wait for them.
  MadeMemory memory;
  for (const std::size_t bytes : sizes) {
    auto made = device.create_shared(bytes);
    if (!made) return forward_error(made);
    memory.push_back(std::move(*made));
  }
  for (std::size_t m = 0; m < sources.size(); ++m)
    if (auto loaded = load(device, sources[m], memory[1 + m]); !loaded)
      return forward_error(loaded);
  if (auto zeroed = zero(device, memory.front(), arena_bytes); !zeroed)
    return forward_error(zeroed);
  return memory;
}

/// Checks whether the context still works, by giving it some work: without work, a lost context may
/// not report that it is lost.
Expected<void> try_context(Device& device) {
  constexpr std::size_t kBytes = 256;
  auto scratch = DeviceBuffer::allocate(device, kBytes);
  if (!scratch) return forward_error(scratch);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  auto done = device.fill(scratch->data(), std::byte{0}, kBytes, stream->handle());
  return done ? stream->finish() : done;
}

}  // namespace

GpuAdapters adapters_behind(const ModelConfig& config, std::span<const LoraFile> files) {
  return {files, config.dtype, GpuWeights(config).bytes};
}

std::size_t gpu_weight_bytes(const GpuAdapters& adapters, const Device& device) {
  return round_up(adapters.end(), device.facts().shared_granularity);
}

Expected<void> make_and_send_gpu_memory(Device& device, const Options& options,
                                        std::size_t arena_bytes) {
  auto made = make_memory(device, options, arena_bytes);
  if (!made) return forward_error(made);
  std::vector<int> fds;
  for (const UniqueFd& fd : *made) fds.push_back(fd.get());
  const GpuMemory message{device.facts().memory_needs_its_maker ? 1u : 0u};
  if (auto sent = send_packet(STDIN_FILENO, message, fds); !sent || message.needs_its_maker == 0)
    return sent;
  for (const int stop : {SIGTERM, SIGHUP}) signal(stop, SIG_IGN);  // the keeper decides when to end
  pollfd keeper{STDIN_FILENO, POLLIN, 0};
  while (true) {
    if (poll(&keeper, 1, -1) < 0) continue;  // EINTR
    auto packet = receive_packet(STDIN_FILENO);
    if (!packet || !*packet) return {};
    if (auto alive = try_context(device); !alive && alive.error().code == Errc::device_lost)
      return alive;
  }
}

}  // namespace kvhive
