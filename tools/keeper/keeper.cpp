#include "tools/keeper/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "actors/channel/channel_layout.hpp"
#include "actors/channel/doorbell.hpp"
#include "config/byte_size.hpp"
#include "config/check.hpp"
#include "config/log.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostBytesOfAllChannels = std::size_t{4} << 30;

const std::vector<PoolObject> kAllObjects = {PoolObject::control, PoolObject::metadata,
                                             PoolObject::tokens, PoolObject::device,
                                             PoolObject::host};

bool has_fired(const UniqueFd& pidfd) {
  pollfd poll_one{pidfd.get(), POLLIN, 0};
  return poll(&poll_one, 1, 0) > 0;
}

void kill_by_pidfd(const UniqueFd& pidfd) {
  if (pidfd) syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

sigset_t stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop, signal);
  return stop;
}

/// Three descriptors a client: take what the system grants.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Whether a descriptor that came with a hello is a pidfd of the peer, and not of some other
/// process (which we might kill in its place), nor any other file. A peer in a PID namespace we
/// cannot see into has no pid to compare.
bool is_pidfd_of(const UniqueFd& fd, pid_t pid) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd.get()));
  for (std::string line; std::getline(info, line);)
    if (line.rfind("Pid:", 0) == 0) return pid == 0 || std::atoi(line.c_str() + 4) == pid;
  return false;
}

/// The process at the other end, by the kernel's word (0 if it lives in a PID namespace we cannot
/// see into).
ucred credentials_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  return credentials;
}

Expected<ModelFacts> describe_model(const Options& options) {
  std::vector<std::string> flags = to_flags(options);
  flags.push_back(needs_profile_run(options) ? "--describe=profile" : "--describe=config");
  auto output = run_to_end("kvhive-engine", flags);
  if (!output) return forward_error(output);
  const Json facts = Json::parse(*output, nullptr, false);
  if (facts.is_discarded())
    return failure(Errc::bad_format, "kvhive-engine --describe printed no JSON");
  ModelFacts model;
  model.name = facts.at("name");
  model.fingerprint = facts.at("fingerprint");
  model.positions = facts.at("positions");
  model.weight_bytes = facts.at("weight_bytes");
  model.engine_peak = facts.at("engine_peak");
  const Json& kv = facts.at("kv");
  model.layout = {kv.at("layers"), kv.at("kv_heads"), kv.at("head_size"), options.block_size,
                  Dtype(kv.at("dtype"))};
  return model;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string describe(const PoolGeometry& g, const std::string& model) {
  return model + " (fingerprint " + hex(g.fingerprint) + ", " + std::string(to_string(g.kv.dtype)) +
         ", " + std::to_string(g.kv.layers) + " layers, " + std::to_string(g.kv.kv_heads) +
         " kv heads of " + std::to_string(g.kv.head_size) + ", block size " +
         std::to_string(g.tokens_per_block) + ")";
}

}  // namespace

// -- start and end --------------------------------------------------------------------------------

Expected<std::unique_ptr<Keeper>> Keeper::start(const Options& options) {
  // From here on a stop signal waits until there is a loop to take it, and somebody to tidy up.
  const sigset_t stop = stop_signals();
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  raise_descriptor_limit();
  auto listener = Listener::open(options.socket);
  if (!listener) return forward_error(listener);
  auto model = describe_model(options);
  if (!model) return forward_error(model);
  MemoryFigures memory = machine_memory();
  memory.weights = model->weight_bytes;
  memory.engine_peak = model->engine_peak;
  auto size = size_pool(options, model->layout, memory, model->positions);
  if (!size) return forward_error(size);

  PoolGeometry geometry{size->device_blocks, size->host_blocks, options.block_size, model->layout,
                        model->fingerprint};
  auto pool = create_pool_objects(geometry);
  if (!pool) return forward_error(pool);
  Options effective = options;
  effective.max_model_len = size->max_model_len;
  std::unique_ptr<Keeper> keeper(
      new Keeper(effective, std::move(*listener), std::move(*model), *size, std::move(*pool)));
  if (auto prepared = keeper->prepare(); !prepared) return forward_error(prepared);
  return keeper;
}

Keeper::Keeper(const Options& options, Listener listener, ModelFacts model, PoolSize size,
               PoolFds pool)
    : options_(options),
      listener_(std::move(listener)),
      model_(std::move(model)),
      size_(size),
      pool_(std::move(pool)) {}

Keeper::~Keeper() { stop_children(); }

PoolGeometry Keeper::geometry() const {
  return {size_.device_blocks, size_.host_blocks, options_.block_size, model_.layout,
          model_.fingerprint};
}

Expected<void> Keeper::prepare() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return os_failure("epoll_create1");
  const sigset_t stop = stop_signals();
  signals_ = UniqueFd(signalfd(-1, &stop, SFD_CLOEXEC));
  if (!signals_) return os_failure("signalfd");
  restart_timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!restart_timer_) return os_failure("timerfd_create");

  watch(listener_.fd(), [this] { accept(); });
  watch(signals_.get(), [this] { is_running_ = false; });
  watch(restart_timer_.get(), [this] {
    std::uint64_t expirations;
    [[maybe_unused]] const ssize_t got =
        read(restart_timer_.get(), &expirations, sizeof expirations);
    for (Child* child : std::exchange(to_restart_, {})) start_child(*child);
    place_channels();
  });

  steward_.program = "kvhive-steward";
  steward_.flags = {"--socket", listener_.path(), "--log-level", options_.log_level};
  if (listener_.made_directory()) steward_.flags.push_back("--remove-directory");
  const std::uint32_t cores =
      static_cast<std::uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  for (std::uint32_t i = 0; i < options_.engines; ++i) {
    Child engine;
    engine.program = "kvhive-engine";
    engine.ends_with_us = true;
    engine.flags = to_flags(options_);
    engine.flags.insert(engine.flags.end(), {"--index", std::to_string(i)});
    engine.threads =
        options_.threads != 0 ? options_.threads : std::max(1u, cores / options_.engines);
    engines_.push_back(std::move(engine));
  }
  start_child(steward_);  // the engines follow once it has formatted the pool
  return {};
}

Expected<void> Keeper::run(const std::function<void()>& on_ready) {
  std::array<epoll_event, 64> events;
  while (is_running_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    KV_CHECK(count >= 0 || errno == EINTR, errno);
    for (int i = 0; i < count && is_running_; ++i) {
      dispatch(events[static_cast<std::size_t>(i)].data.u64);
    }
    const auto engines = std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) {
      return entry.second.is_welcome && entry.second.role == Role::engine;
    });
    if (!is_ready_ && engines >= static_cast<std::ptrdiff_t>(engines_.size())) {
      is_ready_ = true;
      on_ready();
    }
  }
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
}

// -- the event loop's bookkeeping -----------------------------------------------------------------

void Keeper::watch(int fd, std::function<void()> on_ready) {
  // The number tells events of this watch from those of an earlier one on a descriptor of the same
  // number.
  const std::uint32_t number = next_watch_++;
  watched_[fd] = {number, std::move(on_ready)};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = std::uint64_t{number} << 32 | static_cast<std::uint32_t>(fd);
  KV_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0, fd, errno);
}

/// Runs the handler an event was meant for. What it throws ends that one event, not everybody's
/// pool.
void Keeper::dispatch(std::uint64_t event) {
  const auto watch = watched_.find(static_cast<int>(event & 0xffffffff));
  if (watch == watched_.end() || watch->second.number != event >> 32) return;
  const auto on_ready = watch->second.on_ready;  // a copy: the watch may be removed meanwhile
  try {
    on_ready();
  } catch (const std::exception& exception) {
    spdlog::error("{}", exception.what());
  }
}

void Keeper::unwatch(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

// -- children -------------------------------------------------------------------------------------

void Keeper::start_child(Child& child) {
  if (auto started = kvhive::start(child); !started) {
    spdlog::error("{}: {}", child.program, started.error().text);
    restart_later(child);
    return;
  }
  watch(child.pidfd.get(), [this, &child] { on_child_death(child); });
}

void Keeper::start_engines() {
  for (Child& engine : engines_)
    if (!engine.is_running() && engine.starts == 0) start_child(engine);
}

void Keeper::on_child_death(Child& child) {
  unwatch(child.pidfd.get());
  const pid_t pid = child.pid;
  const std::string end = collect(child);
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [pid](const auto& entry) {
    return entry.second.pid == pid && entry.second.is_welcome;
  });
  const bool had_served = peer != peers_.end();
  spdlog::warn("{} (pid {}) ended: {}", child.program, pid, end);
  if (had_served) drop(peer->first);
  // What fails before it was ever of use would fail again and again.
  const bool never_worked =
      &child == &steward_ ? !is_formatted_ && child.starts >= 3 : !is_ready_ && !had_served;
  if (!never_worked) return restart_later(child);
  fatal_ = {Errc::bad_argument,
            child.program + " could not start (" + end + "); its message is above"};
  is_running_ = false;
}

/// At once after a long life, with growing pauses for what dies young.
void Keeper::restart_later(Child& child) {
  using namespace std::chrono;
  const bool died_young = steady_clock::now() - child.last_start < seconds(2);
  const auto pause = died_young ? milliseconds(std::min(5000u, 50u << std::min(child.starts, 7u)))
                                : milliseconds(1);
  to_restart_.insert(&child);
  wake_in(pause);
}

void Keeper::wake_in(std::chrono::milliseconds pause) {
  itimerspec timer{};
  timer.it_value.tv_sec = pause.count() / 1000;
  timer.it_value.tv_nsec = pause.count() % 1000 * 1000000;
  timerfd_settime(restart_timer_.get(), 0, &timer, nullptr);
}

void Keeper::look_again_soon() {
  itimerspec timer{};
  timerfd_gettime(restart_timer_.get(), &timer);
  const bool is_armed = timer.it_value.tv_sec != 0 || timer.it_value.tv_nsec != 0;
  if (!is_armed) wake_in(std::chrono::milliseconds(50));
}

Child* Keeper::child_of(pid_t pid) {
  if (pid == 0) return nullptr;
  if (steward_.pid == pid) return &steward_;
  const auto engine = std::find_if(engines_.begin(), engines_.end(),
                                   [pid](const Child& c) { return c.pid == pid; });
  return engine == engines_.end() ? nullptr : &*engine;
}

// -- connections ----------------------------------------------------------------------------------

void Keeper::accept() {
  UniqueFd socket{accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket) return turn_away();  // gone again, or no descriptor left
  const ucred credentials = credentials_of(socket.get());
  const int fd = socket.get();
  Peer peer;
  peer.socket = std::move(socket);
  peer.pid = credentials.pid;
  peers_.emplace(fd, std::move(peer));
  watch(fd, [this, fd] { on_packet(fd); });
}

/// Without a descriptor left the caller would stay in the queue, and wake us for ever: give up the
/// spare one for a moment to hang up on it.
void Keeper::turn_away() {
  if (errno != EMFILE && errno != ENFILE) return;
  spare_ = UniqueFd();
  UniqueFd{accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC)};
  spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void Keeper::on_packet(int socket) {
  Peer& peer = peers_.at(socket);
  auto packet = receive_packet(socket);
  if (packet && *packet) {
    handle(peer, std::move(**packet));
    return;
  }
  if (!packet && packet.error().code == Errc::os_error) return;  // nothing there after all
  if (!packet) spdlog::warn("pid {}: {}", peer.pid, packet.error().text);
  // A pool process that hangs up may still be writing: it is gone only when its pidfd says so. See
  // to it.
  if (peer.is_welcome && peer.role != Role::client && peer.role != Role::inspector) {
    unwatch(socket);
    return fence(peer);
  }
  drop(socket);
}

/// Ends a process of the pool that cannot be talked to any more. Its blocks return when its pidfd
/// has fired.
void Keeper::fence(const Peer& peer) {
  const Child* child = child_of(peer.pid);
  kill_by_pidfd(child != nullptr ? child->pidfd : peer.pidfd);
}

void Keeper::handle(Peer& peer, Packet packet) {
  const Message& message = packet.message;
  switch (message.type) {
    case MessageType::hello:
      if (!peer.is_welcome) return hello(peer, packet);
      break;
    case MessageType::formatted:
      if (peer.role != Role::steward) break;
      is_formatted_ = true;
      return start_engines();
    case MessageType::reaped:
      if (peer.role != Role::steward || message.slot >= kMaxProcesses) break;
      spdlog::info("slot {} swept: {} blocks freed, {} released", message.slot, message.freed,
                   message.released);
      slots_[message.slot] = SlotUse::vacant;
      return;
    case MessageType::repair_request:
      if (!peer.is_welcome || peer.role != Role::inspector) break;
      return request_repair(peer);
    case MessageType::repaired:
      if (peer.role != Role::steward) break;
      return answer_repair(packet);
    case MessageType::status_request: {
      Message answer;
      answer.type = MessageType::status;
      if (!send_packet(peer.socket.get(), answer, {}, status())) drop(peer.socket.get());
      return;
    }
    default: break;
  }
  refuse(peer,
         {Errc::bad_format, "unexpected message " + std::to_string(std::uint32_t(message.type))});
}

void Keeper::refuse(Peer& peer, const Error& error) {
  spdlog::warn("refused pid {}: {}", peer.pid, error.text);
  Message message;
  message.type = MessageType::refused;
  message.error = error.code;
  message.set_text(error.text);
  (void)send_packet(peer.socket.get(), message);
  drop(peer.socket.get());
}

/// Forgets a peer that is gone, or was never let in.
void Keeper::drop(int socket) {
  const auto found = peers_.find(socket);
  if (found == peers_.end()) return;
  Peer peer = std::move(found->second);
  peers_.erase(found);
  unwatch(socket);
  if (peer.pidfd) unwatch(peer.pidfd.get());
  if (!peer.is_welcome) return;
  if (peer.role == Role::engine) on_engine_gone(peer);
  if (peer.role == Role::steward) give_up_repairs();
  for (auto& [ticket, asker] : repairs_)
    if (asker == socket) asker = -1;
  if (peer.role == Role::client) close_channel(peer.channel);
}

// -- hello and welcome ----------------------------------------------------------------------------

void Keeper::hello(Peer& peer, Packet& packet) {
  const Message& message = packet.message;
  const auto welcome = [&]() -> Expected<void> {
    if (message.layout_hash != layout_hash({}))
      return failure(Errc::layout_mismatch, "the daemon's layout hash is " + hex(layout_hash({})) +
                                                ", yours is " + hex(message.layout_hash) +
                                                "; use programs of the same build");
    if (credentials_of(peer.socket.get()).uid != geteuid() && message.role != Role::client)
      return failure(Errc::bad_argument, "only the daemon's own user may attach to the pool");
    if (packet.fds.empty())
      return failure(Errc::bad_format, "a hello must carry the sender's pidfd");
    peer.role = message.role;
    switch (message.role) {
      case Role::engine: return welcome_engine(peer, message);
      case Role::steward: return welcome_steward(peer);
      case Role::client: return welcome_client(peer, message);
      case Role::inspector: return welcome_inspector(peer, message);
    }
    return failure(Errc::bad_format, "unknown role " + std::to_string(std::uint32_t(message.role)));
  };
  // The processes we started we know better than by their own word.
  if (!packet.fds.empty() && child_of(peer.pid) == nullptr) {
    if (!is_pidfd_of(packet.fds.front(), peer.pid))
      return refuse(peer, {Errc::bad_format, "a hello must carry a pidfd of its sender"});
    peer.pidfd = std::move(packet.fds.front());
    const int socket = peer.socket.get();
    watch(peer.pidfd.get(), [this, socket] { drop(socket); });
    if (has_fired(peer.pidfd)) return drop(socket);
  }
  if (auto welcomed = welcome(); !welcomed) {
    peer.is_welcome = false;
    return refuse(peer, welcomed.error());
  }
}

Expected<void> Keeper::send_welcome(Peer& peer, Message message,
                                    const std::vector<PoolObject>& objects, bool read_only) {
  message.type = MessageType::welcome;
  message.layout_hash = layout_hash({});
  message.geometry = geometry();
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
  peer.is_welcome = true;
  return send_packet(peer.socket.get(), message, fds);
}

Expected<void> Keeper::welcome_engine(Peer& peer, const Message& hello) {
  if (!is_formatted_)
    return failure(Errc::not_running, "the pool is not ready yet; try again in a moment");
  if (!repairs_.empty())  // whatever is held in the name of a vacant slot is being taken away
    return failure(Errc::not_running, "the pool is being repaired; try again in a moment");
  PoolGeometry theirs = hello.geometry;
  const PoolGeometry ours = geometry();
  theirs.device_blocks = ours.device_blocks;  // the size is the keeper's to say
  theirs.host_blocks = ours.host_blocks;
  if (theirs != ours)
    return failure(Errc::layout_mismatch, "the pool holds KV of " + describe(ours, model_.name) +
                                              ", this engine computes " +
                                              describe(hello.geometry, hello.get_text()) +
                                              "; start it with the daemon's model and options");
  const auto slot = std::find(slots_.begin(), slots_.end(), SlotUse::vacant);
  if (slot == slots_.end())
    return failure(Errc::too_many_processes,
                   "all " + std::to_string(kMaxProcesses) + " process slots are taken");
  peer.slot = static_cast<std::uint32_t>(slot - slots_.begin());
  const Child* child = child_of(peer.pid);
  peer.engine =
      child != nullptr ? static_cast<std::uint32_t>(child - engines_.data()) : hello.engine;
  Message message;
  message.slot = peer.slot;
  message.engine = peer.engine;
  auto sent = send_welcome(peer, message, kAllObjects, false);
  if (!sent) return sent;  // it has touched nothing
  *slot = SlotUse::used;
  place_channels();
  return {};
}

Expected<void> Keeper::welcome_steward(Peer& peer) {
  if (child_of(peer.pid) != &steward_)
    return failure(Errc::bad_argument, "the steward is started by the daemon itself");
  Message message;
  message.set_text(listener_.path());
  auto sent = send_welcome(peer, message, kAllObjects, false);
  if (!sent) return sent;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)  // what its predecessor did not get to
    if (slots_[slot] == SlotUse::unswept) sweep(slot);
  return {};
}

Expected<void> Keeper::welcome_inspector(Peer& peer, const Message& hello) {
  std::vector<PoolObject> objects = {PoolObject::control, PoolObject::metadata};
  if (hello.privileged != 0) objects.push_back(PoolObject::tokens);
  Message message;
  message.set_text(model_.name);
  return send_welcome(peer, message, objects, true);
}

Expected<void> Keeper::welcome_client(Peer& peer, const Message& hello) {
  if (hello.engine != kAnyEngine && hello.engine >= engines_.size())
    return failure(Errc::not_found, "engine " + std::to_string(hello.engine) +
                                        " does not exist; this daemon runs engines 0.." +
                                        std::to_string(engines_.size() - 1));
  if (hello.channel_bytes < kLeastChannelBytes || hello.channel_bytes > kMostChannelBytes)
    return failure(Errc::bad_argument, "a channel of " + format_bytes(hello.channel_bytes) +
                                           " is out of bounds; ask for " +
                                           format_bytes(kLeastChannelBytes) + " to " +
                                           format_bytes(kMostChannelBytes));
  Channel channel;
  channel.bytes = (hello.channel_bytes + 4095) / 4096 * 4096;
  std::size_t in_all = channel.bytes;
  for (const auto& [id, other] : channels_) in_all += other.bytes;
  if (in_all > kMostBytesOfAllChannels)
    return failure(Errc::pool_exhausted, "the channels of all clients would have " +
                                             format_bytes(in_all) + ", the daemon grants " +
                                             format_bytes(kMostBytesOfAllChannels) +
                                             "; ask for a smaller one, or try again later");
  auto memory = create_memory("kvhive-channel", channel.bytes);
  if (!memory) return forward_error(memory);
  channel.memory = std::move(*memory);
  auto doorbell = make_doorbell();
  if (!doorbell) return forward_error(doorbell);
  auto& [engine_end, client_end] = *doorbell;
  channel.doorbell = std::move(engine_end);
  channel.wanted_engine = hello.engine;
  channel.client = peer.socket.get();

  peer.channel = next_channel_++;
  Message message;
  message.type = MessageType::welcome;
  message.layout_hash = layout_hash({});
  message.geometry = geometry();
  message.channel = peer.channel;
  message.channel_bytes = channel.bytes;
  peer.is_welcome = true;
  auto sent = send_packet(peer.socket.get(), message,
                          {channel.memory.get(), client_end.get(), client_end.get()});
  if (!sent) return sent;
  const auto [placed, inserted] = channels_.emplace(peer.channel, std::move(channel));
  place(placed->first, placed->second);
  return {};
}

// -- repair ---------------------------------------------------------------------------------------

/// The steward does it; we only say who is alive, which nobody knows better.
void Keeper::request_repair(Peer& peer) {
  Peer* steward = peer_with_role(Role::steward);
  if (!is_ready_ || steward == nullptr)
    return refuse(peer, {Errc::not_running,
                         "the daemon is starting or its steward is just being restarted; try again "
                         "in a moment"});
  Message message;
  message.type = MessageType::repair;
  message.ticket = next_ticket_++;
  if (!send_packet(steward->socket.get(), message, {}, to_json(slot_owners()).dump()))
    return refuse(peer, {Errc::peer_died, "the steward does not listen; try again in a moment"});
  repairs_.emplace(message.ticket, peer.socket.get());
}

void Keeper::answer_repair(const Packet& done) {
  const auto found = repairs_.find(done.message.ticket);
  if (found == repairs_.end()) return;
  const int asker = found->second;
  repairs_.erase(found);
  spdlog::info("pool repaired: {}", done.tail);
  if (asker == -1) return;
  Message message;
  message.type = MessageType::repair_done;
  if (!send_packet(asker, message, {}, done.tail)) drop(asker);
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

void Keeper::on_engine_gone(Peer& peer) {
  slots_[peer.slot] = SlotUse::unswept;
  sweep(peer.slot);
  for (auto& [id, channel] : channels_)
    if (channel.engine == peer.socket.get()) channel.engine = -1;
  place_channels();
}

void Keeper::sweep(std::uint32_t slot) {
  Peer* steward = peer_with_role(Role::steward);
  if (steward == nullptr) return;  // the next one is told when it comes
  Message message;
  message.type = MessageType::reap;
  message.slot = slot;
  if (!send_packet(steward->socket.get(), message))
    fence(*steward);  // the next one is told everything
}

void Keeper::place_channels() {
  for (auto& [id, channel] : channels_)
    if (channel.engine == -1) place(id, channel);
}

/// Gives a channel to the engine it wants, or to the one with the fewest; with no such engine there
/// it waits.
void Keeper::place(std::uint64_t id, Channel& channel) {
  int best = -1;
  for (const auto& [socket, peer] : peers_) {
    if (!peer.is_welcome || peer.role != Role::engine) continue;
    if (channel.wanted_engine != kAnyEngine && channel.wanted_engine != peer.engine) continue;
    if (best == -1 || load_of(socket) < load_of(best)) best = socket;
  }
  if (best == -1) return;
  Message message;
  message.type = MessageType::channel_open;
  message.channel = id;
  message.channel_bytes = channel.bytes;
  if (send_packet(best, message,
                  {channel.memory.get(), channel.doorbell.get(), channel.doorbell.get()}))
    channel.engine = best;
  else
    look_again_soon();  // it is stopped or busy, and its queue is full
}

std::size_t Keeper::load_of(int engine_socket) const {
  return static_cast<std::size_t>(std::count_if(
      channels_.begin(), channels_.end(),
      [engine_socket](const auto& entry) { return entry.second.engine == engine_socket; }));
}

void Keeper::close_channel(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return;
  if (found->second.engine != -1) {
    Message message;
    message.type = MessageType::channel_close;
    message.channel = id;
    // An engine whose queue is full would keep the channel for ever: it is started anew instead.
    if (!send_packet(found->second.engine, message)) fence(peers_.at(found->second.engine));
  }
  channels_.erase(found);
}

Keeper::Peer* Keeper::peer_with_role(Role role) {
  for (auto& [socket, peer] : peers_)
    if (peer.is_welcome && peer.role == role) return &peer;
  return nullptr;
}

// -- status ---------------------------------------------------------------------------------------

SlotOwners Keeper::slot_owners() const {
  SlotOwners owners{};
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (slots_[slot] == SlotUse::unswept) owners[slot].use = SlotOwner::Use::unswept;
  for (const auto& [socket, peer] : peers_)
    if (peer.is_welcome && peer.role == Role::engine)
      owners[peer.slot] = {SlotOwner::Use::used, static_cast<std::uint32_t>(peer.pid)};
  return owners;
}

std::string Keeper::status() const {
  Json status;
  status["keeper"] = {
      {"pid", getpid()}, {"socket", listener_.path()}, {"repairs", repairs_.size()}};
  status["model"] = {{"name", model_.name},
                     {"directory", std::filesystem::absolute(options_.model)},
                     {"fingerprint", hex(model_.fingerprint)},
                     {"max_model_len", size_.max_model_len}};
  status["steward"] = {{"pid", steward_.pid},
                       {"restarts", steward_.starts - std::min(steward_.starts, 1u)}};
  status["engines"] = Json::array();
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const Child& child = engines_[i];
    Json engine = {{"engine", i},
                   {"pid", child.pid},
                   {"restarts", child.starts - std::min(child.starts, 1u)},
                   {"state", child.is_running() ? "starting" : "down"}};
    for (const auto& [socket, peer] : peers_)
      if (peer.is_welcome && peer.role == Role::engine && peer.pid == child.pid)
        engine.update({{"state", "serving"}, {"slot", peer.slot}, {"channels", load_of(socket)}});
    status["engines"].push_back(engine);
  }
  status["slots"] = to_json(slot_owners());
  status["clients"] = Json::array();
  for (const auto& [socket, peer] : peers_) {
    if (!peer.is_welcome || peer.role != Role::client) continue;
    const auto channel = channels_.find(peer.channel);
    if (channel == channels_.end()) continue;
    const auto engine = peers_.find(channel->second.engine);
    Json client = {
        {"pid", peer.pid}, {"channel", peer.channel}, {"channel_bytes", channel->second.bytes}};
    client["engine"] = engine == peers_.end() ? Json() : Json(engine->second.engine);
    status["clients"].push_back(client);
  }
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvhive
