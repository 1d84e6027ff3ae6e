#include "tools/engine/gpu_memory.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "base/round_up.hpp"
#include "config/models/hosted_models.hpp"
#include "device/device_memory.hpp"
#include "ipc/protocol.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "models/safetensors.hpp"
#include "tools/engine/model.hpp"
#include "tools/program/progress_bar.hpp"

namespace kvhive {
namespace {

struct MadeMemory {
  UniqueFd arena, weights;
};

Expected<MadeMemory> make_memory(Device& device, const Options& options, const ModelConfig& config,
                                 std::size_t arena_bytes) {
  auto files = SafetensorsDirectory::open(hosted_model(options).directory);
  if (!files) return forward_error(files);
  MadeMemory memory;
  const std::size_t bytes = gpu_weight_bytes(config, device);
  for (const auto& [fd, size] : {std::pair{&memory.weights, bytes}, {&memory.arena, arena_bytes}}) {
    auto made = device.create_shared(size);
    if (!made) return forward_error(made);
    *fd = std::move(*made);
  }
  auto weights = SharedDeviceMemory::map(device, memory.weights.get(), bytes);
  if (!weights) return forward_error(weights);
  ProgressBar bar("loading " + model_name(options));
  if (auto uploaded =
          upload_weights(device, config, *files, weights->data(),
                         [&](std::size_t done, std::size_t total) { bar.show(done, total); });
      !uploaded)
    return forward_error(uploaded);
  auto arena = SharedDeviceMemory::map(device, memory.arena.get(), arena_bytes);
  if (!arena) return forward_error(arena);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  auto zeroed = device.fill(arena->data(), std::byte{0}, arena_bytes, stream->handle());
  if (zeroed) zeroed = stream->finish();
  if (!zeroed) return forward_error(zeroed);
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

std::size_t gpu_weight_bytes(const ModelConfig& config, const Device& device) {
  return round_up(GpuWeights(config).bytes, device.facts().shared_granularity);
}

Expected<void> make_and_send_gpu_memory(Device& device, const Options& options,
                                        const ModelConfig& config, std::size_t arena_bytes) {
  auto made = make_memory(device, options, config, arena_bytes);
  if (!made) return forward_error(made);
  const GpuMemory message{device.facts().memory_needs_its_maker ? 1u : 0u};
  if (auto sent = send_packet(STDIN_FILENO, message, {made->arena.get(), made->weights.get()});
      !sent || message.needs_its_maker == 0)
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
