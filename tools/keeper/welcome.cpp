// Who is let in, and what they are given: the keeper's side of a hello.

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "ipc/pidfd.hpp"
#include "tools/keeper/keeper.hpp"

namespace kvhive {
namespace {

const std::vector<PoolObject> kAllObjects = {PoolObject::control, PoolObject::metadata,
                                             PoolObject::tokens, PoolObject::device,
                                             PoolObject::host};

std::string hex(std::uint64_t number) { return fmt::format("{:016x}", number); }

std::string describe(const PoolGeometry& g, const std::string& model) {
  return model + " (fingerprint " + hex(g.fingerprint) + ", on " +
         std::string(to_string(g.device)) + ", " + std::string(to_string(g.kv.dtype)) + " in " +
         std::string(to_string(g.kv.pages)) + ", " + std::to_string(g.kv.layers) + " layers, " +
         std::to_string(g.kv.kv_heads) + " kv heads of " + std::to_string(g.kv.head_size) +
         ", block size " + std::to_string(g.tokens_per_block) + ")";
}

Expected<void> check_layout(std::uint32_t hash) {
  if (hash == layout_hash({})) return {};
  return failure(Errc::layout_mismatch, "the daemon's layout hash is " + hex(layout_hash({})) +
                                            ", yours is " + hex(hash) +
                                            "; use programs of the same build");
}

}  // namespace

void Keeper::hello(Peer& peer, Packet& packet) {
  if (packet.fds.empty())
    return refuse(peer, {Errc::bad_format, "a hello must carry the sender's pidfd"});
  // The processes we started we know better than by their own word.
  if (child_of(peer.pid) == nullptr) {
    if (!is_pidfd_of(packet.fds.front(), peer.pid))
      return refuse(peer, {Errc::bad_format, "a hello must carry a pidfd of its sender"});
    peer.pidfd = std::move(packet.fds.front());
    const int socket = peer.socket.get();
    loop_.watch(peer.pidfd.get(), [this, socket] { drop(socket); });
    if (has_fired(peer.pidfd)) return drop(socket);
  }
  if (auto welcomed = welcome(peer, packet); !welcomed) {
    peer.is_welcome = false;
    return refuse(peer, welcomed.error());
  }
}

Expected<void> Keeper::welcome(Peer& peer, const Packet& packet) {
  if (const auto hello = packet.as<ClientHello>()) {
    peer.role = Role::client;
    return welcome_client(peer, *hello);
  }
  if (peer.uid != geteuid())
    return failure(Errc::bad_argument, "only the daemon's own user may attach to the pool");
  if (const auto hello = packet.as<EngineHello>()) {
    if (auto same = check_layout(hello->layout_hash); !same) return same;
    peer.role = Role::engine;
    return welcome_engine(peer, *hello);
  }
  if (const auto hello = packet.as<StewardHello>()) {
    if (auto same = check_layout(hello->layout_hash); !same) return same;
    peer.role = Role::steward;
    return welcome_steward(peer);
  }
  const auto hello = packet.as<InspectorHello>();
  if (auto same = check_layout(hello->layout_hash); !same) return same;
  peer.role = Role::inspector;
  return welcome_inspector(peer, *hello);
}

template <class Welcome>
Expected<void> Keeper::send_welcome(Peer& peer, Welcome message,
                                    const std::vector<PoolObject>& objects, bool read_only) {
  std::vector<UniqueFd> reopened;
  std::vector<int> fds;
  for (const PoolObject object : objects) {
    const UniqueFd& fd = pool_[std::size_t(object)];
    if (!fd) continue;
    message.objects |= 1u << std::size_t(object);
    fds.push_back(fd.get());
    if (!read_only) continue;
    auto weaker = reopen_read_only(fd.get());
    if (!weaker) return forward_error(weaker);
    reopened.push_back(std::move(*weaker));
    fds.back() = reopened.back().get();
  }
  if (peer.role == Role::engine && gpu_weights_) fds.push_back(gpu_weights_.get());
  peer.is_welcome = true;
  return send_packet(peer.socket.get(), message, fds);
}

Expected<void> Keeper::welcome_engine(Peer& peer, const EngineHello& hello) {
  if (!is_formatted_)
    return failure(Errc::not_running, "the pool is not ready yet; try again in a moment");
  if (!repairs_.empty())  // whatever is held in the name of a vacant slot is being taken away
    return failure(Errc::not_running, "the pool is being repaired; try again in a moment");
  // Who came now could hold what is about to be dropped.
  if (options_.gpu_fault == GpuFault::drop_all &&
      std::find(drops_unheld_.begin(), drops_unheld_.end(), true) != drops_unheld_.end())
    return failure(Errc::not_running, "the GPU's blocks are being dropped; try again in a moment");
  PoolGeometry theirs = hello.geometry;
  const PoolGeometry ours = geometry();
  theirs.device_blocks = ours.device_blocks;  // the size is the keeper's to say
  theirs.host_blocks = ours.host_blocks;
  if (theirs != ours)
    return failure(Errc::layout_mismatch, "the pool holds KV of " + describe(ours, model_.name) +
                                              ", this engine computes " +
                                              describe(hello.geometry, hello.model.str()) +
                                              "; start it with the daemon's model and options");
  // On another GPU it would reach the arena as a stranger's memory, or fail without saying why.
  if (is_on_gpu() && hello.gpu.str() != model_.gpu.uuid)
    return failure(Errc::layout_mismatch,
                   "the pool is on " + model_.gpu.name + " " + model_.gpu.uuid +
                       ", this engine on " + hello.gpu.str() +
                       "; make the pool's its first: CUDA_VISIBLE_DEVICES=" + model_.gpu.uuid);
  const auto slot = std::find(slots_.begin(), slots_.end(), SlotUse::vacant);
  if (slot == slots_.end())
    return failure(Errc::too_many_processes,
                   "all " + std::to_string(kMaxProcesses) +
                       " process slots are taken, the most a pool has; end an engine, or start "
                       "another daemon");
  peer.slot = static_cast<std::uint32_t>(slot - slots_.begin());
  const Child* child = child_of(peer.pid);
  if (child != nullptr) {
    peer.engine = static_cast<std::uint32_t>(child - engines_.data());
  } else {
    auto number = number_of_guest(hello.engine);
    if (!number) return forward_error(number);
    peer.engine = *number;
  }
  const EngineWelcome message{
      .engine = peer.engine, .slot = peer.slot, .pid = static_cast<std::uint32_t>(peer.pid)};
  auto sent = send_welcome(peer, message, kAllObjects, false);
  if (!sent) return sent;  // it has touched nothing
  *slot = SlotUse::used;
  channels_.add_engine(peer.socket.get(), peer.engine);
  place_channels();
  return {};
}

Expected<void> Keeper::welcome_steward(Peer& peer) {
  if (child_of(peer.pid) != &steward_)
    return failure(Errc::bad_argument, "the steward is started by the daemon itself");
  StewardWelcome message;
  message.geometry = geometry();
  auto sent = send_welcome(peer, message, kAllObjects, false);
  if (!sent) return sent;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)  // what its predecessor did not get to
    if (slots_[slot] == SlotUse::unswept) sweep(slot);
  return {};
}

Expected<void> Keeper::welcome_inspector(Peer& peer, const InspectorHello& hello) {
  std::vector<PoolObject> objects = {PoolObject::control, PoolObject::metadata};
  if (hello.wants_tokens != 0) objects.push_back(PoolObject::tokens);
  InspectorWelcome message;
  message.model = FixedText<512>(model_.name);
  return send_welcome(peer, message, objects, true);
}

Expected<void> Keeper::welcome_client(Peer& peer, const ClientHello& hello) {
  if (hello.engine != kAnyEngine && !has_engine(hello.engine))
    return failure(Errc::not_found, "engine " + std::to_string(hello.engine) +
                                        " does not exist; this daemon runs engines 0.." +
                                        std::to_string(engines_.size() - 1));
  auto domain = domains_.of(PeerIdentity::of_socket(peer.socket.get()));
  if (!domain) return forward_error(domain);
  auto channel = channels_.create(hello.channel_bytes, hello.engine, *domain);
  if (!channel) return forward_error(channel);
  const ClientWelcome message{channel->id, channel->bytes};
  const int doorbell = channel->doorbell.get();
  if (auto sent = send_packet(peer.socket.get(), message, {channel->memory, doorbell, doorbell});
      !sent) {
    close_channel(channel->id);
    return sent;
  }
  peer.channel = channel->id;
  peer.is_welcome = true;
  place_channels();
  return {};
}

}  // namespace kvhive
