// Decides which processes may join, and what each role is sent.

#include "tools/keeper/welcome.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "config/machine/machine_memory.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "ipc/channel/slot_state.hpp"
#include "pool/pool_layout.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {
namespace {

const std::vector<PoolObject> kAllObjects = {PoolObject::control, PoolObject::metadata,
                                             PoolObject::tokens, PoolObject::device,
                                             PoolObject::host};

std::string hex(std::uint64_t number) { return fmt::format("{:016x}", number); }

std::string describe(const ModelCache& cache, DeviceKind device, const std::string& model) {
  const KvLayout& kv = cache.kv;
  return model + " (fingerprint " + hex(cache.fingerprint) + ", on " +
         std::string(to_string(device)) + ", " + std::string(to_string(kv.dtype)) + " in " +
         std::string(to_string(kv.pages)) + ", " + std::to_string(kv.layers) + " layers, " +
         (kv.kind == KvKind::latent ? "latent rows of "
                                    : std::to_string(kv.kv_heads) + " kv heads of ") +
         std::to_string(kv.head_size) + ", block size " + std::to_string(cache.tokens_per_block) +
         ")";
}

std::string describe(const MadePool& pool) {
  std::string text;
  for (std::size_t m = 0; m < pool.models.size(); ++m)
    text += (m == 0 ? "" : " and of ") +
            describe(pool.geometry.models[m], pool.geometry.device, pool.models[m].name);
  return text;
}

enum class Opened : std::uint8_t { as_they_are, read_only };

/// Sends a welcome with the descriptors of these memory objects of the pool, and those of `more`
/// that there are after them.
template <class Welcome>
Expected<void> send_welcome(const Tables& tables, const Peer& peer, Welcome message,
                            const std::vector<PoolObject>& objects, Opened opened,
                            std::initializer_list<const UniqueFd*> more = {}) {
  std::vector<UniqueFd> reopened;
  std::vector<int> fds;
  for (const PoolObject object : objects) {
    const UniqueFd& fd = tables.pool.objects[std::size_t(object)];
    if (!fd) continue;
    message.objects |= 1u << std::size_t(object);
    fds.push_back(fd.get());
    if (opened == Opened::as_they_are) continue;
    auto weaker = reopen_read_only(fd.get());
    if (!weaker) return forward_error(weaker);
    reopened.push_back(std::move(*weaker));
    fds.back() = reopened.back().get();
  }
  for (const UniqueFd* fd : more)
    if (*fd) fds.push_back(fd->get());
  return send_packet(peer.socket.get(), message, fds);
}

/// Whether the pool can take an engine now.
Expected<void> check_moment(const Tables& tables) {
  if (!tables.is_formatted)
    return failure(Errc::not_running, "the pool is not ready yet; try again in a moment");
  if (!tables.repairs.empty())  // the repair releases blocks that are held by vacant slots
    return failure(Errc::not_running, "the pool is being repaired; try again in a moment");
  // Otherwise a new engine could pin blocks that are about to be dropped.
  const bool is_dropping = std::any_of(tables.slots.begin(), tables.slots.end(),
                                       [](const Slot& slot) { return slot.drops_unheld; });
  if (tables.options.asked.gpu_fault == GpuFault::drop_all && is_dropping)
    return failure(Errc::not_running, "the GPU's blocks are being dropped; try again in a moment");
  return {};
}

/// Which model's KV the engine computes, on the device that the pool is on.
std::optional<ModelId> model_of(const PoolGeometry& pool, const EngineHello& hello) {
  if (hello.device != pool.device) return std::nullopt;
  for (std::uint8_t m = 0; m < pool.model_count; ++m) {
    ModelCache theirs = hello.cache;
    theirs.kv.padding = pool.models[m].kv.padding;
    theirs.groups.first = pool.models[m].groups.first;
    if (theirs == pool.models[m]) return ModelId{m};
  }
  return std::nullopt;
}

/// What an engine of the same model has to be started with.
std::string remedy_for(const ModelCache& ours, const ModelCache& theirs) {
  if (theirs.tokens_per_block != ours.tokens_per_block)
    return "start it with --block-size " + std::to_string(ours.tokens_per_block);
  if (theirs.kv.dtype != ours.kv.dtype)
    return "start it with --kv-cache-dtype " + std::string(to_string(ours.kv.dtype));
  return "its weights or its adapters (--lora-modules) are not those of the daemon's engines";
}

/// Why the pool holds nothing that the engine computes, and what to do.
std::string mismatch_of(const MadePool& pool, const EngineHello& hello) {
  const std::string name = hello.model.str();
  const auto model = hello.device == pool.geometry.device ? pool.find(name) : std::nullopt;
  std::string ours = describe(pool), remedy = "start it with the daemon's model and options";
  if (model) {
    const ModelCache& cache = pool.geometry.models[model->value];
    ours = describe(cache, pool.geometry.device, name);
    remedy = remedy_for(cache, hello.cache);
  }
  return "the pool holds KV of " + ours + ", this engine computes " +
         describe(hello.cache, hello.device, name) + "; " + remedy;
}

/// Whether the engine computes KV that the pool holds, on the GPU that the pool is on. The keeper's
/// own engine computes the model that it was started for: two models may differ in name alone.
Expected<ModelId> check_model(const MadePool& pool, const EngineHello& hello, const Child* child) {
  if (const CpuKernels kernels = pool.geometry.cpu_kernels;
      hello.device == pool.geometry.device && hello.cpu_kernels != kernels)
    return failure(Errc::layout_mismatch,
                   "the pool is computed with --cpu-kernels " + std::string(to_string(kernels)) +
                       ", this engine computes with " + std::string(to_string(hello.cpu_kernels)) +
                       "; start it with the pool's");
  auto model = model_of(pool.geometry, hello);
  if (!model) return failure(Errc::layout_mismatch, mismatch_of(pool, hello));
  if (child != nullptr) model = child->model;
  // An engine on another GPU would fail later, without a reason that a user could act on.
  const ModelFacts::Gpu& gpu = pool.device_facts().gpu;
  if (pool.is_on_gpu() && hello.gpu.str() != gpu.uuid)
    return failure(Errc::layout_mismatch,
                   "the pool is on " + gpu.name + " " + gpu.uuid + ", this engine on " +
                       hello.gpu.str() +
                       "; make the pool's its first: CUDA_VISIBLE_DEVICES=" + gpu.uuid);
  return *model;
}

/// The number that an engine gets. For a child of the keeper it is its index among the children.
/// For another engine it is the number that it asks for, or the lowest free number if it asks for
/// none.
Expected<std::uint32_t> number_of(const Tables& tables, const Peer& peer, std::uint32_t wanted) {
  if (const Child* child = tables.child_of(peer))
    return static_cast<std::uint32_t>(child - tables.engines.data());
  const std::uint32_t free = tables.free_engine_number();
  if (wanted == kAnyEngine) return free;
  if (!tables.has_engine(wanted)) return wanted;
  return failure(Errc::bad_argument, "index: engine " + std::to_string(wanted) +
                                         " is there already; use " + std::to_string(free) +
                                         ", or leave --index out");
}

Expected<std::uint32_t> vacant_slot(const Tables& tables) {
  const auto slot = std::find_if(tables.slots.begin(), tables.slots.end(),
                                 [](const Slot& s) { return s.use == Slot::Use::vacant; });
  if (slot != tables.slots.end()) return static_cast<std::uint32_t>(slot - tables.slots.begin());
  return failure(Errc::too_many_processes,
                 "all " + std::to_string(kMaxProcesses) +
                     " process slots are taken, the most a pool has; end an engine, or start "
                     "another daemon");
}

Expected<void> welcome_engine(Tables& tables, Peer& peer, const EngineHello& hello) {
  if (auto good = check_moment(tables); !good) return good;
  auto model = check_model(tables.pool, hello, tables.child_of(peer));
  if (!model) return forward_error(model);
  auto slot = vacant_slot(tables);
  if (!slot) return forward_error(slot);
  auto number = number_of(tables, peer, hello.engine);
  if (!number) return forward_error(number);
  peer.engine = *number;
  peer.slot = *slot;
  peer.model = *model;
  tables.slots[*slot].use = Slot::Use::used;
  tables.slots[*slot].life = next_life(tables.slots[*slot].life);
  tables.channels.add_engine(peer.socket.get(), peer.engine, ProcessSlot{peer.slot}, peer.model);
  if (tables.child_of(peer) == nullptr)
    spdlog::info("engine {} (pid {}) joined, slot {}; it was started by hand", peer.engine,
                 peer.pid, peer.slot);
  return {};
}

Expected<void> welcome_steward(const Tables& tables, const Peer& peer) {
  if (tables.child_of(peer) == &tables.steward) return {};
  return failure(Errc::bad_argument, "the steward is started by the daemon itself");
}

/// What the machine has now, or had 20 ms ago at most; then what channels have taken since is
/// subtracted.
MachineMemory available_memory(Tables& tables) {
  constexpr std::chrono::milliseconds kFresh{20};
  const auto now = std::chrono::steady_clock::now();
  SeenMemory& seen = tables.memory;
  const std::size_t made = tables.channels.bytes_made();
  if (now - seen.at > kFresh) seen = {machine_memory(), made, now};
  MachineMemory machine = seen.machine;
  machine.available -= std::min(machine.available, made - std::min(made, seen.channels));
  return machine;
}

/// What channels may still take of the machine's memory. Some is kept: engines need room for a step
/// and to be started again, and if they do not find it, the kernel kills a process. Where memory is
/// short, channels get one half and the other is kept. What they have taken already counts in their
/// half: if only the rest were halved each time, who goes on asking would get nearly all.
MachineMemory memory_for_channels(Tables& tables) {
  constexpr std::size_t kMostForSmallThings = std::size_t{64} << 20;
  MachineMemory machine = available_memory(tables);
  std::size_t of_a_step = 0;
  if (!tables.pool.is_on_gpu())
    for (const Child& engine : tables.engines)
      of_a_step += tables.pool.models[engine.model.value].engine_peak;
  const std::size_t wanted = of_a_step + std::min(kMostForSmallThings, machine.total / 16);
  machine.available -= std::min(machine.available, tables.channels.bytes_to_make());
  const std::size_t shared = machine.available + tables.channels.bytes_made();
  machine.available -= std::min(machine.available, std::min(wanted, shared / 2));
  return machine;
}

Expected<void> welcome_client(Tables& tables, Peer& peer, const ClientHello& hello) {
  if (hello.engine != kAnyEngine && !tables.has_engine(hello.engine))
    return failure(Errc::not_found, "engine " + std::to_string(hello.engine) +
                                        " does not exist; kvhive pool procs lists them");
  auto model = tables.wanted_model(hello);
  if (!model) return forward_error(model);
  // Before the domain: it gets a number for ever.
  if (auto good = tables.channels.check_bytes(hello.channel_bytes); !good)
    return forward_error(good);
  const PeerIdentity identity = PeerIdentity::of_socket(peer.socket.get());
  const std::string wanted = hello.domain.str();
  const Asker asker = peer.is_stranger() ? Asker::any_user : Asker::trusted;
  auto domain = wanted.empty() ? tables.domains.of(identity)
                               : tables.domains.asked_for(wanted, identity, asker);
  if (!domain) return forward_error(domain);
  const ChannelOwner owner{*domain, peer.uid, peer.is_stranger(), tables.domains.share(*domain)};
  auto channel = tables.channels.reserve(hello.channel_bytes, hello.engine, owner,
                                         memory_for_channels(tables), *model);
  if (!channel) return forward_error(channel);
  peer.channel = *channel;
  peer.awaits_channel = true;
  return {};
}

Expected<void> check_member(const Peer& peer, std::uint32_t hash) {
  if (peer.is_stranger())
    return failure(Errc::bad_argument,
                   "only the daemon's own user, or root, may attach to the pool");
  if (hash == layout_hash({})) return {};
  return failure(Errc::layout_mismatch, "the daemon's layout hash is " + hex(layout_hash({})) +
                                            ", yours is " + hex(hash) +
                                            "; use programs of the same build");
}

/// Returns `welcomed` and, if it is no error, enters the role into the peer.
Expected<void> as(Role role, Tables& tables, Peer& peer, Expected<void> welcomed) {
  if (!welcomed) return welcomed;
  peer.role = role;
  peer.is_welcome = true;
  if (role == Role::client)
    tables.touch(peer);  // its channel's memory is made before
  else
    tables.owe_welcome(peer);
  return {};
}

Expected<void> send_engine_welcome(const Tables& tables, const Peer& peer) {
  const EngineWelcome message{.engine = peer.engine,
                              .slot = peer.slot,
                              .life = tables.slots[peer.slot].life,
                              .pid = static_cast<std::uint32_t>(peer.pid),
                              .model = peer.model.value};
  const UniqueFd none;
  const bool is_on_gpu = tables.pool.is_on_gpu();
  return send_welcome(
      tables, peer, message, kAllObjects, Opened::as_they_are,
      {&tables.pool.board, is_on_gpu ? &tables.pool.gpu_weights[peer.model.value] : &none});
}

Expected<void> send_steward_welcome(const Tables& tables, const Peer& peer) {
  StewardWelcome message;
  message.geometry = tables.pool.geometry;
  return send_welcome(tables, peer, message, kAllObjects, Opened::as_they_are);
}

Expected<void> send_inspector_welcome(const Tables& tables, const Peer& peer) {
  std::vector<PoolObject> objects = {PoolObject::control, PoolObject::metadata};
  if (peer.wants_tokens) objects.push_back(PoolObject::tokens);
  InspectorWelcome message;
  message.model = FixedText<512>(tables.pool.names());
  return send_welcome(tables, peer, message, objects, Opened::read_only);
}

Expected<void> send_client_welcome(const Tables& tables, const Peer& peer) {
  const auto offer = tables.channels.offer(peer.channel);
  if (!offer) return forward_error(offer);
  return send_packet(
      peer.socket.get(), ClientWelcome{peer.channel, offer->bytes},
      {offer->requests.get(), offer->answers.get(), offer->engine_bell, offer->client_bell.get()});
}

}  // namespace

Expected<void> send_welcome(const Tables& tables, const Peer& peer) {
  switch (peer.role) {
    case Role::engine: return send_engine_welcome(tables, peer);
    case Role::steward: return send_steward_welcome(tables, peer);
    case Role::inspector: return send_inspector_welcome(tables, peer);
    case Role::client: return send_client_welcome(tables, peer);
  }
  return {};
}

Expected<void> welcome(Tables& tables, Peer& peer, const Packet& packet) {
  if (const auto hello = packet.as<ClientHello>())
    return as(Role::client, tables, peer, welcome_client(tables, peer, *hello));
  if (const auto hello = packet.as<EngineHello>()) {
    if (auto good = check_member(peer, hello->layout_hash); !good) return good;
    return as(Role::engine, tables, peer, welcome_engine(tables, peer, *hello));
  }
  if (const auto hello = packet.as<StewardHello>()) {
    if (auto good = check_member(peer, hello->layout_hash); !good) return good;
    return as(Role::steward, tables, peer, welcome_steward(tables, peer));
  }
  if (const auto hello = packet.as<InspectorHello>()) {
    if (auto good = check_member(peer, hello->layout_hash); !good) return good;
    peer.wants_tokens = hello->wants_tokens != 0;
    return as(Role::inspector, tables, peer, {});
  }
  return failure(Errc::bad_format, "a hello of an unknown role");
}

Expected<void> check_quota(const Options& options) {
  const std::size_t bytes = options.channel_bytes_per_domain;
  const std::size_t most = ChannelQuota{}.of_all;
  if (bytes == 0 || (bytes >= kLeastChannelBytes && bytes <= most)) return {};
  return failure(Errc::bad_argument, "channel-bytes-per-domain: '" + std::to_string(bytes) +
                                         "' must be 0, or " + format_bytes(kLeastChannelBytes) +
                                         " to " + format_bytes(most) + "; a client asks for " +
                                         format_bytes(kUsualChannelBytes) +
                                         " unless told otherwise");
}

ChannelQuota quota_of(const Options& options) {
  ChannelQuota quota;
  if (options.channel_bytes_per_domain != 0) quota.of_domain = options.channel_bytes_per_domain;
  return quota;
}

}  // namespace kvhive
