#include "tools/keeper/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/byte_size.hpp"
#include "base/exit_codes.hpp"
#include "base/log.hpp"
#include "config/machine_memory.hpp"
#include "config/process_limits.hpp"
#include "ipc/channel_layout.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// A packet holds only so much; later ones go by their numbers.
constexpr std::size_t kMostDomainsTold = 1024;

sigset_t stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop, signal);
  return stop;
}

/// Descriptors that no client gets: for children that have to be started again.
constexpr std::size_t kKeptDescriptors = 16;
/// What somebody needs who has said nothing yet: a pidfd, a channel and its two doorbells.
constexpr std::size_t kDescriptorsOfAHello = 4;

/// What to look at after a child could not start.
std::string remedy_for(const std::string& end) {
  std::string remedy = "its message is above";
  if (end != "signal " + std::to_string(SIGKILL)) return remedy;
  const MachineMemory memory = machine_memory();
  remedy += "; if there is none, the kernel wanted memory: ";
  remedy += memory.bound + " has " + format_bytes(memory.available) +
            " available; lower kv-cache-memory-bytes, or raise that limit";
  return remedy;
}

Expected<void> check_quota(const Options& options) {
  const std::size_t bytes = options.channel_bytes_per_domain;
  const std::size_t most = ChannelQuota{}.of_all;
  if (bytes == 0 || (bytes >= kLeastChannelBytes && bytes <= most)) return {};
  return failure(Errc::bad_argument, "channel-bytes-per-domain: '" + std::to_string(bytes) +
                                         "' must be 0, or " + format_bytes(kLeastChannelBytes) +
                                         " to " + format_bytes(most) +
                                         "; a client asks for 16 MiB unless told otherwise");
}

ChannelQuota quota_of(const Options& options) {
  ChannelQuota quota;
  if (options.channel_bytes_per_domain != 0) quota.of_domain = options.channel_bytes_per_domain;
  return quota;
}

/// The process at the other end, by the kernel's word (0 if it lives in a PID namespace we cannot
/// see into).
ucred credentials_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  return credentials;
}

}  // namespace

// -- start and end --------------------------------------------------------------------------------

Expected<std::unique_ptr<Keeper>> Keeper::start(const Options& options) {
  // From here on a stop signal waits until there is a loop to take it, and somebody to tidy up.
  const sigset_t stop = stop_signals();
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error, not our death
  if (auto enough = check_descriptors(take_process_limits(), options.engines); !enough)
    return forward_error(enough);
  if (auto sound = check_quota(options); !sound) return forward_error(sound);
  auto loop = EventLoop::create();
  if (!loop) return forward_error(loop);
  auto domains = Domains::resolve(options, PeerIdentity::of_ourselves());
  if (!domains) return forward_error(domains);
  auto access = resolve_permissions(options.socket_access);
  if (!access) return forward_error(access);
  auto listener = Listener::open(options.socket, *access);
  if (!listener) return forward_error(listener);
  std::unique_ptr<Keeper> keeper(
      new Keeper(options, std::move(*domains), std::move(*listener), std::move(*loop)));
  auto prepared = keeper->prepare();
  if (!prepared) return forward_error(prepared);
  if (!*prepared) return nullptr;
  return keeper;
}

Keeper::Keeper(const Options& options, Domains domains, Listener listener, EventLoop loop)
    : options_(options),
      resolved_{options},
      domains_(std::move(domains)),
      listener_(std::move(listener)),
      loop_(std::move(loop)),
      channels_(engine_line_, quota_of(options)) {}

Keeper::~Keeper() { stop_children(); }

PoolGeometry Keeper::geometry() const {
  return {size_.device_blocks, size_.host_blocks,  options_.block_size,
          model_.layout,       model_.fingerprint, model_.device};
}

Expected<bool> Keeper::prepare() {
  if (auto watched = watch_signals(); !watched) return forward_error(watched);
  loop_.watch(listener_.fd(), [this] { accept(); });
  start_steward();  // before anything that takes time: should we be killed, it removes the socket
  if (fatal_.code != Errc::none) return failure(fatal_.code, fatal_.text);
  if (auto made = make_pool(); !made || !*made) return made;
  prepare_engines();  // they start once the steward has formatted the pool
  return true;
}

Expected<void> Keeper::watch_signals() {
  const sigset_t stop = stop_signals();
  signals_ = UniqueFd(signalfd(-1, &stop, SFD_CLOEXEC));
  if (!signals_) return os_failure("signalfd");
  loop_.watch(signals_.get(), [this] { loop_.stop(); });
  return {};
}

Expected<bool> Keeper::make_pool() {
  auto model = describe_model(options_, signals_.get());
  if (!model) return forward_error(model);
  if (!*model) return false;
  model_ = std::move(**model);
  resolved_.device = model_.device;
  if (!model_.device_reason.empty())
    spdlog::info("device: {} ({})", to_string(model_.device), model_.device_reason);
  if (is_on_gpu())
    resolved_.gpu_memory_sharing =
        model_.gpu.memory_needs_its_maker ? GpuMemorySharing::ipc : GpuMemorySharing::vmm;
  if (!model_.gpu.sharing_reason.empty())
    spdlog::warn("the GPU's memory is shared by legacy IPC, and one more process keeps it: {}",
                 model_.gpu.sharing_reason);
  const MachineMemory machine = machine_memory();
  const std::size_t weights = is_on_gpu() ? 0 : model_.weight_bytes;  // those in host memory
  const MemoryFigures host = {machine.total, machine.available, weights, model_.engine_peak,
                              machine.bound};
  const MemoryFigures device =
      is_on_gpu() ? MemoryFigures{model_.gpu.total, model_.gpu.available, model_.weight_bytes,
                                  model_.engine_peak, "the GPU"}
                  : host;
  auto size = size_pool(options_, model_.device, model_.layout, device, model_.positions);
  if (!size) return forward_error(size);
  size_ = *size;
  resolved_.max_model_len = size_.max_model_len;
  const PoolLayout layout(geometry());
  const std::size_t mapped_device = is_on_gpu() ? 0 : layout.device_bytes;
  const std::size_t whole = mapped_device + layout.host_bytes + layout.control_bytes +
                            layout.metadata_bytes + layout.tokens_bytes;
  if (auto fits = check_room(whole, host); !fits) return forward_error(fits);
  if (auto fits = check_bytes(
          take_process_limits(), whole + weights,
          std::max({mapped_device, layout.host_bytes, layout.metadata_bytes, layout.tokens_bytes}));
      !fits)
    return forward_error(fits);
  auto pool = create_pool_objects(geometry());
  if (!pool) return forward_error(pool);
  pool_ = std::move(*pool);
  return is_on_gpu() ? take_gpu_memory(layout.device_bytes) : true;
}

Expected<bool> Keeper::take_gpu_memory(std::size_t arena_bytes) {
  auto made = gpu_memory_.make(resolved_, arena_bytes, signals_.get());
  if (!made) return forward_error(made);
  if (!*made) return false;
  pool_[std::size_t(PoolObject::device)] = std::move((*made)->arena);
  gpu_weights_ = std::move((*made)->weights);
  if (gpu_memory_.is_running())
    loop_.watch(gpu_memory_.pidfd().get(), [this] { on_gpu_memory_lost(); });
  return true;
}

Expected<void> Keeper::run(const std::function<void()>& on_ready) {
  on_ready_ = on_ready;
  loop_.run();
  if (fatal_.code != Errc::none) return failure(fatal_.code, fatal_.text);
  return {};
}

/// Nobody outlives the keeper. They are killed, not asked: the pool goes anyway, and being killed
/// is what they are built for.
void Keeper::stop_children() {
  std::vector<Child*> children = {&steward_};
  for (Child& engine : engines_) children.push_back(&engine);
  for (Child* child : children)
    if (child->is_running()) kill_by_pidfd(child->pidfd);
  for (Child* child : children)
    if (child->is_running()) collect(*child);
  if (gpu_memory_.is_running()) end_guests();
  gpu_memory_.end();  // last: they had it mapped
}

/// Kills the guests and waits until they are gone, but for those in a PID namespace that we cannot
/// see into.
void Keeper::end_guests() {
  for (const auto& [socket, peer] : peers_) {
    if (!is_guest(peer)) continue;
    fence(peer);
    pollfd gone{peer.pidfd.get(), POLLIN, 0};
    if (peer.pid != 0 && peer.pidfd) poll(&gone, 1, -1);
  }
}

// -- children -------------------------------------------------------------------------------------

void Keeper::start_steward() {
  steward_.program = "kvhive-steward";
  steward_.flags = {"--socket",    listener_.path(),
                    "--keeper",    std::to_string(getpid()),
                    "--log-level", std::string(to_string(options_.log_level))};
  if (listener_.made_directory()) steward_.flags.push_back("--remove-directory");
  start_child(steward_);
}

void Keeper::prepare_engines() {
  const std::uint32_t cores =
      static_cast<std::uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  for (std::uint32_t i = 0; i < options_.engines; ++i) {
    Child engine;
    engine.program = "kvhive-engine";
    engine.ends_with_us = true;
    engine.flags = to_flags(resolved_);
    engine.flags.insert(engine.flags.end(), {"--index", std::to_string(i)});
    engine.threads =
        options_.threads != 0 ? options_.threads : std::max(1u, cores / options_.engines);
    engines_.push_back(std::move(engine));
  }
}

void Keeper::start_child(Child& child) {
  if (auto started = kvhive::start(child); !started) {
    if (!is_ready_) {  // somebody waits for us to say yes or no
      fatal_ = started.error();
      return loop_.stop();
    }
    spdlog::error("{}: {}", child.program, started.error().text);
    return restart_later(child);
  }
  loop_.watch(child.pidfd.get(), [this, &child] { on_child_death(child); });
}

void Keeper::start_engines() {
  for (Child& engine : engines_)
    if (!engine.is_running() && engine.starts == 0) start_child(engine);
}

void Keeper::on_child_death(Child& child) {
  loop_.unwatch(child.pidfd.get());
  const pid_t pid = child.pid;
  const std::string end = collect(child);
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [pid](const auto& entry) {
    return entry.second.pid == pid && entry.second.is_welcome;
  });
  const bool had_served = peer != peers_.end() && peer->second.is_serving;
  spdlog::warn("{} (pid {}) ended: {}", child.program, pid, end);
  if (peer != peers_.end()) {
    if (child.last_exit_code == kExitDeviceLost) on_lost_device(peer->second);
    drop(peer->first);
  }
  // What fails before it was ever of use would fail again and again.
  const bool never_worked =
      &child == &steward_ ? !is_formatted_ && child.starts >= 3 : !is_ready_ && !had_served;
  if (!never_worked) return restart_later(child);
  fatal_ = {Errc::bad_argument,
            child.program + " could not start (" + end + "); " + remedy_for(end)};
  loop_.stop();
}

/// What the engines have mapped of it is undefined now, and nothing in the device tier is left.
void Keeper::on_gpu_memory_lost() {
  loop_.unwatch(gpu_memory_.pidfd().get());
  const std::string what = gpu_memory_.collect();
  // Not where all were told to stop, and it was the first to hear.
  pollfd stop{signals_.get(), POLLIN, 0};
  if (poll(&stop, 1, 0) <= 0) fatal_ = {Errc::peer_died, what};
  loop_.stop();
}

/// At once after a long life, with growing pauses for what dies young.
void Keeper::restart_later(Child& child) {
  using namespace std::chrono;
  const bool died_young = steady_clock::now() - child.last_start < seconds(2);
  child.young_deaths = died_young ? child.young_deaths + 1 : 0;
  const auto pause = died_young
                         ? milliseconds(std::min(5000u, 50u << std::min(child.young_deaths, 7u)))
                         : milliseconds(1);
  loop_.after(pause, [this, &child] { start_child(child); });
}

const Child* Keeper::child_of(pid_t pid) const {
  if (pid == 0) return nullptr;
  if (steward_.pid == pid) return &steward_;
  const auto engine = std::find_if(engines_.begin(), engines_.end(),
                                   [pid](const Child& c) { return c.pid == pid; });
  return engine == engines_.end() ? nullptr : &*engine;
}

// -- connections ----------------------------------------------------------------------------------

void Keeper::accept() {
  const auto next = [this] {
    return UniqueFd{accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  };
  UniqueFd socket = next();
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    // It would stay in the queue, and wake us for ever.
    spare_ = UniqueFd();
    turn_away(next());
    spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  if (!socket) return;
  const ucred credentials = credentials_of(socket.get());
  const int fd = socket.get();
  Peer peer;
  peer.socket = std::move(socket);
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  if (!has_room_for(peer)) return turn_away(std::move(peer.socket));
  peers_.emplace(fd, std::move(peer));
  loop_.watch(fd, [this, fd] { on_packet(fd); });
}

/// Whether it and all who have not yet said hello can be served, and our children after them.
bool Keeper::has_room_for(const Peer& peer) const {
  if (child_of(peer.pid) != nullptr) return true;
  const auto strangers = std::count_if(peers_.begin(), peers_.end(),
                                       [](const auto& entry) { return !entry.second.is_welcome; });
  return descriptors_left(peer.socket.get()) >=
         kKeptDescriptors + (static_cast<std::size_t>(strangers) + 1) * kDescriptorsOfAHello;
}

void Keeper::turn_away(UniqueFd socket) {
  if (!socket) return;
  errno = EMFILE;
  const Error error = os_failure("the daemon cannot take another connection").value();
  // An error here means that the peer has gone already.
  (void)send_packet(socket.get(), Refused{error.code, FixedText<512>(error.text)});
  // What it has said already must not be left unread: its end would be reset.
  char ignored;
  while (recv(socket.get(), &ignored, 1, MSG_DONTWAIT) > 0) {
  }
}

void Keeper::on_packet(int socket) {
  Peer& peer = peers_.at(socket);
  auto packet = receive_packet(socket);
  if (packet && *packet) {
    handle(peer, std::move(**packet));
    return;
  }
  if (!packet && packet.error().code == Errc::os_error) return;  // nothing there after all
  if (!packet && packet.error().code == Errc::layout_mismatch) return refuse(peer, packet.error());
  if (!packet) spdlog::warn("pid {}: {}", peer.pid, packet.error().text);
  hang_up(peer);
}

/// Ends a connection. A process of the pool may still be writing: it is gone only when its pidfd
/// says so. See to it.
void Keeper::hang_up(Peer& peer) {
  const bool is_of_the_pool = peer.has_role(Role::engine) || peer.has_role(Role::steward);
  if (!is_of_the_pool) return drop(peer.socket.get());
  loop_.unwatch(peer.socket.get());
  fence(peer);
}

/// Ends a process of the pool that cannot be talked to any more. Its blocks return when its pidfd
/// has fired. One in a PID namespace we cannot see into cannot be signalled: it hears that the line
/// is dead.
void Keeper::fence(const Peer& peer) {
  shutdown(peer.socket.get(), SHUT_RDWR);
  const Child* child = child_of(peer.pid);
  kill_by_pidfd(child != nullptr ? child->pidfd : peer.pidfd);
}

void Keeper::handle(Peer& peer, Packet packet) {
  if (packet.lost_fds)
    return refuse(peer, {Errc::os_error,
                         "the daemon has no file descriptor left for those sent to it; raise its "
                         "limit (ulimit -n), or try again later"});
  switch (packet.type()) {
    case MessageType::engine_hello:
    case MessageType::steward_hello:
    case MessageType::client_hello:
    case MessageType::inspector_hello:
      if (!peer.is_welcome) return hello(peer, packet);
      break;
    case MessageType::formatted:
      if (peer.role != Role::steward) break;
      is_formatted_ = true;
      return start_engines();
    case MessageType::reaped: {
      const auto reaped = packet.as<Reaped>();
      if (peer.role != Role::steward || reaped->slot >= kMaxProcesses) break;
      spdlog::info("slot {} swept: {} blocks freed, {} released", reaped->slot, reaped->freed,
                   reaped->released);
      slots_[reaped->slot] = SlotUse::vacant;
      drops_unheld_[reaped->slot] = false;
      return;
    }
    case MessageType::serving:
      if (peer.role != Role::engine) break;
      peer.is_serving = true;
      return look_whether_ready();
    case MessageType::channel_refused:
      if (peer.role != Role::engine) break;
      return on_channel_refused(peer, *packet.as<ChannelRefused>());
    case MessageType::repair_request:
      if (!peer.has_role(Role::inspector)) break;
      return request_repair(peer);
    case MessageType::repaired:
      if (peer.role != Role::steward) break;
      return answer_repair(packet);
    case MessageType::status_request: {
      if (peer.uid != geteuid())  // it tells of other users
        return refuse(peer,
                      {Errc::bad_argument, "only the daemon's own user may ask who is connected"});
      if (!send_packet(peer.socket.get(), Status{}, {}, status(peer))) hang_up(peer);
      return;
    }
    default: break;
  }
  refuse(peer,
         {Errc::bad_format, "unexpected message " + std::to_string(std::uint32_t(packet.type()))});
}

void Keeper::refuse(Peer& peer, const Error& error) {
  spdlog::warn("refused pid {}: {}", peer.pid, error.text);
  // An error here means that the peer has gone already.
  (void)send_packet(peer.socket.get(), Refused{error.code, FixedText<512>(error.text)});
  hang_up(peer);
}

/// Forgets a peer that is gone, or was never let in.
void Keeper::drop(int socket) {
  const auto found = peers_.find(socket);
  if (found == peers_.end()) return;
  Peer peer = std::move(found->second);
  peers_.erase(found);
  loop_.unwatch(socket);
  if (peer.pidfd) loop_.unwatch(peer.pidfd.get());
  if (!peer.is_welcome) return;
  // How a guest ended nobody tells us: on a GPU it may have lost its context.
  if (peer.role == Role::engine && peer.pidfd && is_on_gpu() &&
      options_.gpu_fault != GpuFault::keep)
    drops_unheld_[peer.slot] = true;
  if (peer.role == Role::engine) on_engine_gone(peer);
  if (peer.role == Role::steward) give_up_repairs();
  for (auto& [ticket, asker] : repairs_)
    if (asker == socket) asker = -1;
  if (peer.role == Role::client) close_channel(peer.channel);
}

// -- repair ---------------------------------------------------------------------------------------

/// The steward does it; we only say who is alive, which nobody knows better.
void Keeper::request_repair(Peer& peer) {
  Peer* steward = peer_with_role(Role::steward);
  if (!is_ready_ || steward == nullptr)
    return refuse(peer, {Errc::not_running,
                         "the daemon is starting or its steward is just being restarted; try again "
                         "in a moment"});
  const Repair message{next_ticket_++};
  if (!send_packet(steward->socket.get(), message, {}, to_json(slot_owners()).dump()))
    return refuse(peer, {Errc::peer_died, "the steward does not listen; try again in a moment"});
  repairs_.emplace(message.ticket, peer.socket.get());
}

void Keeper::answer_repair(const Packet& done) {
  const auto found = repairs_.find(done.as<Repaired>()->ticket);
  if (found == repairs_.end()) return;
  const int asker = found->second;
  repairs_.erase(found);
  spdlog::info("pool repaired: {}", done.tail());
  if (asker == -1) return;
  if (!send_packet(asker, RepairDone{}, {}, done.tail())) drop(asker);
}

void Keeper::give_up_repairs() {
  for (const auto& [ticket, asker] : std::exchange(repairs_, {})) {
    const auto peer = peers_.find(asker);
    if (peer == peers_.end()) continue;
    refuse(peer->second, {Errc::peer_died,
                          "the steward died in the middle of the repair, which does no harm; run "
                          "it again"});
  }
}

// -- engines and their channels -------------------------------------------------------------------

void Keeper::look_whether_ready() {
  const auto serving = std::count_if(peers_.begin(), peers_.end(), [this](const auto& entry) {
    return entry.second.is_serving && child_of(entry.second.pid) != nullptr;
  });
  if (is_ready_ || serving < static_cast<std::ptrdiff_t>(engines_.size())) return;
  is_ready_ = true;
  on_ready_();
}

void Keeper::on_engine_gone(const Peer& peer) {
  slots_[peer.slot] = SlotUse::unswept;
  sweep(peer.slot);
  channels_.remove_engine(peer.socket.get());
  place_channels();
}

/// Its kernels could write to every block of the device. What others hold they may have read since
/// it was right, and only the operator knows what that is worth.
void Keeper::on_lost_device(const Peer& engine) {
  gpu_memory_.look_at_its_context();  // under MPS the fault was its, too
  if (options_.gpu_fault == GpuFault::keep) return;
  drops_unheld_[engine.slot] = true;
  if (options_.gpu_fault != GpuFault::drop_all) return;
  for (const auto& [socket, peer] : peers_) {
    if (!peer.has_role(Role::engine) || peer.slot == engine.slot) continue;
    drops_unheld_[peer.slot] = true;
    fence(peer);
  }
}

void Keeper::sweep(std::uint32_t slot) {
  Peer* steward = peer_with_role(Role::steward);
  if (steward == nullptr) return;  // the next one is told when it comes
  const Reap message{slot, drops_unheld_[slot] ? 1u : 0u};
  if (!send_packet(steward->socket.get(), message))
    fence(*steward);  // the next one is told everything
}

void Keeper::place_channels() {
  if (channels_.place_waiting() || places_again_soon_) return;
  places_again_soon_ = true;
  loop_.after(std::chrono::milliseconds(50), [this] {
    places_again_soon_ = false;
    place_channels();
  });
}

void Keeper::close_channel(std::uint64_t id) {
  // An engine whose queue is full would keep the channel for ever: it is started anew instead.
  if (const auto deaf = channels_.close(id)) fence(peers_.at(*deaf));
}

/// An engine cannot serve a channel: its client is told why, and nobody else is concerned.
void Keeper::on_channel_refused(const Peer& engine, const ChannelRefused& message) {
  const auto channel = channels_.find(message.channel);
  if (!channel || channel->engine != engine.socket.get()) return;  // closed, or moved on
  channels_.take_back(message.channel);
  for (auto& [socket, peer] : peers_)
    if (peer.has_role(Role::client) && peer.channel == message.channel)
      return refuse(peer, {message.error, message.reason.str()});
}

// -- guests: engines that somebody else started --------------------------------------------------

bool Keeper::is_guest(const Peer& peer) const {
  return peer.has_role(Role::engine) && child_of(peer.pid) == nullptr;
}

/// Whether a client may ask for it. Our own ones come back, should they be dead just now.
bool Keeper::has_engine(std::uint32_t number) const {
  if (number < engines_.size()) return true;
  return std::any_of(peers_.begin(), peers_.end(), [number](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.has_role(Role::engine) && peer.engine == number;
  });
}

/// The number a guest asks for, or the first free one after our own engines'.
Expected<std::uint32_t> Keeper::number_of_guest(std::uint32_t wanted) const {
  auto first_free = static_cast<std::uint32_t>(engines_.size());
  while (has_engine(first_free)) ++first_free;
  if (wanted == kAnyEngine) return first_free;
  if (!has_engine(wanted)) return wanted;
  return failure(Errc::bad_argument, "index: engine " + std::to_string(wanted) +
                                         " is there already; use " + std::to_string(first_free) +
                                         ", or leave --index out");
}

Keeper::Peer* Keeper::peer_with_role(Role role) {
  for (auto& [socket, peer] : peers_)
    if (peer.has_role(role)) return &peer;
  return nullptr;
}

// -- status ---------------------------------------------------------------------------------------

SlotOwners Keeper::slot_owners() const {
  SlotOwners owners{};
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (slots_[slot] == SlotUse::unswept) owners[slot].use = SlotOwner::Use::unswept;
  for (const auto& [socket, peer] : peers_)
    if (peer.has_role(Role::engine))
      owners[peer.slot] = {SlotOwner::Use::used, static_cast<std::uint32_t>(peer.pid)};
  return owners;
}

std::string Keeper::status(const Peer& asker) {
  Json status;
  status["keeper"] = {
      {"pid", getpid()}, {"socket", listener_.path()}, {"repairs", repairs_.size()}};
  status["model"] = {{"name", model_.name},
                     {"directory", std::filesystem::absolute(options_.model)},
                     {"fingerprint", fmt::format("{:016x}", model_.fingerprint)},
                     {"max_model_len", size_.max_model_len}};
  status["steward"] = {{"pid", steward_.pid},
                       {"restarts", steward_.starts - std::min(steward_.starts, 1u)}};
  if (gpu_memory_.is_running()) status["gpu_memory"] = {{"pid", gpu_memory_.pid()}};
  status["engines"] = Json::array();
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const Child& child = engines_[i];
    Json engine = {{"engine", i},
                   {"pid", child.pid},
                   {"restarts", child.starts - std::min(child.starts, 1u)},
                   {"state", child.is_running() ? "starting" : "down"}};
    for (const auto& [socket, peer] : peers_)
      if (peer.has_role(Role::engine) && peer.pid == child.pid)
        engine.update(
            {{"state", "serving"}, {"slot", peer.slot}, {"channels", channels_.load_of(socket)}});
    status["engines"].push_back(engine);
  }
  for (const auto& [socket, peer] : peers_)
    if (is_guest(peer))
      status["engines"].push_back({{"engine", peer.engine},
                                   {"pid", peer.pid},
                                   {"restarts", 0},
                                   {"state", "guest"},
                                   {"slot", peer.slot},
                                   {"channels", channels_.load_of(socket)}});
  status["slots"] = to_json(slot_owners());
  const auto askers = domains_.of(PeerIdentity::of_socket(asker.socket.get()));
  const auto& names = domains_.names();
  const auto told = static_cast<std::ptrdiff_t>(std::min(names.size(), kMostDomainsTold));
  status["domains"] = {{"names", std::vector<std::string>(names.begin(), names.begin() + told)},
                       {"yours", askers ? Json(names[askers->value]) : Json()}};
  status["clients"] = Json::array();
  for (const auto& [socket, peer] : peers_) {
    if (!peer.has_role(Role::client)) continue;
    const auto channel = channels_.find(peer.channel);
    if (!channel) continue;
    Json client = {{"pid", peer.pid}, {"channel", peer.channel}, {"channel_bytes", channel->bytes}};
    client["uid"] = peer.uid;
    client["domain"] = domains_.names()[channel->domain.value];
    client["engine"] = channel->engine ? Json(peers_.at(*channel->engine).engine) : Json();
    status["clients"].push_back(client);
  }
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvhive
