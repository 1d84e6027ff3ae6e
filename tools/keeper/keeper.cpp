#include "tools/keeper/keeper.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/byte_size.hpp"
#include "base/check.hpp"
#include "base/exit_codes.hpp"
#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "config/process_limits.hpp"
#include "ipc/channel/board.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "ipc/pidfd.hpp"
#include "ipc/text_memory.hpp"
#include "tools/keeper/status.hpp"
#include "tools/keeper/steward_orders.hpp"
#include "tools/keeper/welcome.hpp"
#include "tools/privilege/system_calls.hpp"

namespace kvhive {
namespace {

/// Delay before an engine whose queue was full is told again.
constexpr std::chrono::milliseconds kTellAgain{50};
/// How long the steward may take to sweep a slot. It takes milliseconds, or a second on a machine
/// that swaps.
constexpr std::chrono::seconds kPatienceWithSteward{10};

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

Expected<UniqueFd> open_signals(std::initializer_list<int> signals) {
  const sigset_t set = set_of(signals);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return os_failure("signalfd");
  return fd;
}

/// The name of the program that a process runs ("kvhive"); "unknown" if the process has ended or is
/// not visible.
std::string program_of(std::uint32_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> std::ws, name);
  return name.empty() ? "unknown" : name;
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

std::vector<std::string> steward_flags(const Options& options, const Listener& listener) {
  std::vector<std::string> flags = {"--socket",
                                    listener.path(),
                                    "--socket-identity",
                                    listener.identity(),
                                    "--keeper",
                                    std::to_string(getpid()),
                                    "--log-level",
                                    std::string(to_string(options.log_level)),
                                    "--system-call-filter",
                                    std::string(to_string(options.system_call_filter))};
  if (!options.log_file.empty()) flags.insert(flags.end(), {"--log-file", options.log_file});
  if (options.lock_metadata) flags.push_back("--lock-metadata");
  if (listener.made_directory()) flags.push_back("--remove-directory");
  return flags;
}

/// What becomes of a dead engine's channels: "2 go on, 1 waits for an engine".
std::string describe(const Channels::Left& left) {
  return left.had == 0 ? ""
                       : fmt::format(": {} go on, {} waiting for an engine",
                                     left.had - left.waiting, left.waiting);
}

}  // namespace

// -- start and end --------------------------------------------------------------------------------

Expected<std::unique_ptr<Keeper>> Keeper::start(const Options& options) {
  // From here on signals are blocked and read from signalfds by the event loop. A stop signal must
  // not end the process before it has removed the socket and ended its children.
  const sigset_t signals = set_of({SIGTERM, SIGINT, SIGHUP});
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const ProcessLimits limits = take_process_limits();
  if (auto enough = check_descriptors(limits, options.engines); !enough)
    return forward_error(enough);
  if (auto sound = check_quota(options); !sound) return forward_error(sound);
  auto loop = EventLoop::create();
  if (!loop) return forward_error(loop);
  auto domains = Domains::resolve(options, PeerIdentity::of_this_process());
  if (!domains) return forward_error(domains);
  auto access = resolve_permissions(options.socket_access);
  if (!access) return forward_error(access);
  auto listener = Listener::open(options.socket, *access);
  if (!listener) return forward_error(listener);
  std::unique_ptr<Keeper> keeper(
      new Keeper(options, limits, std::move(*domains), std::move(*listener), std::move(*loop)));
  auto prepared = keeper->prepare();
  if (!prepared) return forward_error(prepared);
  if (!*prepared) return nullptr;
  return keeper;
}

Keeper::Keeper(const Options& options, const ProcessLimits& limits, Domains domains,
               Listener listener, EventLoop loop)
    : listener_(std::move(listener)),
      loop_(std::move(loop)),
      tables_{.options = {options},
              .domains = std::move(domains),
              .pool = {},
              .peers = {},
              .steward = {},
              .engines = {},
              .channels = Channels(quota_of(options)),
              .repairs = {},
              .memory = {}},
      connections_(tables_, loop_, *this, limits_for(limits.descriptors)),
      supervisor_(tables_, loop_, *this),
      pinner_(loop_, *this),
      maker_(loop_, *this) {}

/// Kills the keeper's children, so that no process of the pool outlives the keeper. It does not ask
/// them to end: the pool's memory is freed with them, and they are built to be killed at any
/// instruction.
Keeper::~Keeper() {
  // Before the steward is killed: if the keeper is killed before it has removed them, the steward
  // does it.
  listener_.remove_files();
  listener_.leave_open();
  supervisor_.stop_all();
  if (tables_.pool.gpu_memory.is_running()) end_guests();
  tables_.pool.gpu_memory.end();  // last, because the engines have had its memory mapped
}

Expected<bool> Keeper::prepare() {
  if (auto watched = watch_signals(); !watched) return forward_error(watched);
  connections_.listen(listener_.fd());
  // The steward is started before anything that takes time, because it removes the socket if the
  // keeper is killed.
  supervisor_.start_steward(steward_flags(tables_.options.asked, listener_));
  if (const Error& fatal = supervisor_.fatal(); fatal.code != Errc::none)
    return failure(fatal.code, fatal.text);
  auto pool = make_pool(tables_.options, stop_signals_.get());
  if (!pool) return forward_error(pool);
  if (!*pool) return false;
  tables_.pool = std::move(**pool);
  if (tables_.pool.gpu_memory.is_running())
    loop_.watch(tables_.pool.gpu_memory.pidfd().get(), [this] { on_gpu_memory_lost(); });
  // From here on the keeper listens to strangers. Its children inherit the filter; what a GPU's
  // driver calls in them is not known.
  if (!tables_.pool.is_on_gpu())
    if (auto kept = keep_only_calls_of(Program::keeper, tables_.options.asked.system_call_filter);
        !kept)
      return forward_error(kept);
  return true;  // the engines start once the steward has formatted the pool
}

Expected<void> Keeper::watch_signals() {
  auto stop = open_signals({SIGTERM, SIGINT});
  if (!stop) return forward_error(stop);
  auto hangup = open_signals({SIGHUP});
  if (!hangup) return forward_error(hangup);
  stop_signals_ = std::move(*stop);
  hangup_signals_ = std::move(*hangup);
  loop_.watch(stop_signals_.get(), [this] { on_stop_signal(); });
  loop_.watch(hangup_signals_.get(), [this] { on_hangup_signal(); });
  return {};
}

void Keeper::on_stop_signal() {
  signalfd_siginfo signal{};
  if (read(stop_signals_.get(), &signal, sizeof signal) != sizeof signal) return;
  const std::string sender =
      signal.ssi_pid == 0 ? "the terminal"
                          : fmt::format("pid {} ({})", signal.ssi_pid, program_of(signal.ssi_pid));
  spdlog::info("stopping: SIG{} from {}", sigabbrev_np(static_cast<int>(signal.ssi_signo)), sender);
  loop_.stop();
}

/// Called on SIGHUP, which says that the log file was renamed. The keeper and its children open it
/// again.
void Keeper::on_hangup_signal() {
  signalfd_siginfo signal{};
  if (read(hangup_signals_.get(), &signal, sizeof signal) != sizeof signal) return;
  const std::string sender =
      std::to_string(signal.ssi_pid) + " (" + program_of(signal.ssi_pid) + ")";
  if (tables_.options.asked.log_file.empty())
    return spdlog::info("SIGHUP from pid {}: there is no log file to reopen", sender);
  if (auto reopened = reopen_log(); !reopened)
    return spdlog::error("SIGHUP from pid {}: {}", sender, reopened.error().text);
  spdlog::info("SIGHUP from pid {}: log file reopened", sender);
  for (const auto& [socket, peer] : tables_.peers)
    if (peer.is_welcome && tables_.child_of(peer.pid) != nullptr)
      if (auto sent = send_packet(socket, ReopenLog{}); !sent)
        spdlog::warn("pid {} was not told to reopen the log file: {}", peer.pid, sent.error().text);
}

Expected<void> Keeper::run(const std::function<void()>& on_ready) {
  on_ready_ = on_ready;
  loop_.run();
  if (const Error& fatal = supervisor_.fatal(); fatal.code != Errc::none)
    return failure(fatal.code, fatal.text);
  return {};
}

/// Kills the guests and waits until they have ended, except those that are not visible in the
/// keeper's PID namespace.
void Keeper::end_guests() {
  for (const auto& [socket, peer] : tables_.peers) {
    if (!tables_.is_guest(peer)) continue;
    connections_.fence(peer);
    if (peer.pid != 0 && peer.pidfd) wait_for_end(peer.pidfd, -1);
  }
}

/// Called when the child that keeps the GPU's memory has ended. The engines' mappings of that
/// memory are undefined now and the device tier is lost, so the daemon ends.
void Keeper::on_gpu_memory_lost() {
  loop_.unwatch(tables_.pool.gpu_memory.pidfd().get());
  const std::string what = tables_.pool.gpu_memory.collect();
  // If a stop signal was sent to all processes and this child ended first, that is no error.
  pollfd stop{stop_signals_.get(), POLLIN, 0};
  if (poll(&stop, 1, 0) > 0) return loop_.stop();
  supervisor_.fail({Errc::peer_died, what});
}

// -- the router -----------------------------------------------------------------------------------

void Keeper::on_packet(Peer& peer, Packet packet) {
  const MessageType type = packet.type();
  switch (type) {
    case MessageType::engine_hello:
    case MessageType::steward_hello:
    case MessageType::client_hello:
    case MessageType::inspector_hello:
      if (!peer.is_welcome) return on_hello(peer, std::move(packet));
      break;
    case MessageType::status_request: return send_status(peer);
    default:
      if (peer.has_role(Role::steward) && on_steward_packet(packet)) return;
      if (peer.has_role(Role::engine) && on_engine_packet(peer, packet)) return;
      if (peer.has_role(Role::inspector) && on_inspector_packet(peer, packet)) return;
      if (peer.has_role(Role::client) && on_client_packet(peer, packet)) return;
  }
  connections_.refuse(
      peer, {Errc::bad_format, "unexpected message " + std::to_string(std::uint32_t(type))});
}

bool Keeper::on_steward_packet(const Packet& packet) {
  if (packet.is(MessageType::formatted)) {
    tables_.is_formatted = true;
    supervisor_.start_engines();
    return true;
  }
  if (packet.is(MessageType::repaired)) {
    on_repaired(tables_, connections_, packet);
    return true;
  }
  const auto reaped = packet.as<Reaped>();
  return reaped && on_reaped(tables_, *reaped);
}

bool Keeper::on_engine_packet(Peer& peer, const Packet& packet) {
  if (packet.is(MessageType::serving)) {
    peer.is_serving = true;
    check_ready();
    return true;
  }
  const auto refused = packet.as<ChannelRefused>();
  if (!refused && !packet.is(MessageType::channel_taken)) return false;
  const bool takes_more = tables_.channels.answered(peer.socket.get());
  if (refused) on_channel_refused(peer, *refused);
  if (takes_more) tell_engines();
  return true;
}

bool Keeper::on_inspector_packet(Peer& peer, const Packet& packet) {
  if (!packet.is(MessageType::repair_request)) return false;
  request_repair(tables_, connections_, peer);
  return true;
}

bool Keeper::on_client_packet(Peer& peer, const Packet& packet) {
  if (!packet.is(MessageType::requests_sealed)) return false;
  if (auto memory = tables_.channels.sealed(peer.channel))
    pinner_.pin(peer.channel, peer.uid, **memory, tables_.channels.find(peer.channel)->bytes);
  else
    connections_.refuse(peer, memory.error());
  return true;
}

void Keeper::on_hello(Peer& peer, Packet hello) {
  if (!connections_.identify(peer, hello)) return;
  if (auto welcomed = welcome(tables_, peer, hello); !welcomed)
    return connections_.refuse(peer, welcomed.error());
  switch (peer.role) {
    case Role::steward: return on_steward();
    case Role::engine: return tell_engines();
    case Role::client: return make_channel(peer);
    case Role::inspector: return;
  }
}

void Keeper::send_status(Peer& peer) {
  if (peer.is_stranger())  // the status names other users
    return connections_.refuse(
        peer,
        {Errc::bad_argument, "only the daemon's own user, or root, may ask who is connected"});
  const auto domain = tables_.domains.of(PeerIdentity::of_socket(peer.socket.get()));
  const auto text = write_text_memory(
      status_of(tables_, listener_.path(), domain ? std::optional(*domain) : std::nullopt));
  if (!text) return connections_.refuse(peer, text.error());
  if (!send_packet(peer.socket.get(), Status{}, {text->get()})) connections_.hang_up(peer);
}

void Keeper::check_ready() {
  const auto serving =
      std::count_if(tables_.peers.begin(), tables_.peers.end(), [this](const auto& entry) {
        return entry.second.is_serving && tables_.child_of(entry.second.pid) != nullptr;
      });
  if (tables_.is_ready || serving < static_cast<std::ptrdiff_t>(tables_.engines.size())) return;
  tables_.is_ready = true;
  on_ready_();
}

void Keeper::on_child_end(const Child& child, pid_t pid) {
  const Peer* peer = tables_.peer_of(pid);
  if (peer == nullptr) return;
  if (child.last_exit_code == kExitDeviceLost) on_lost_device(tables_, connections_, *peer);
  connections_.drop(peer->socket.get());
}

void Keeper::on_gone(const Peer& peer) {
  for (auto& [ticket, asker] : tables_.repairs)
    if (asker == peer.socket.get()) asker = -1;
  switch (peer.role) {
    case Role::engine: return on_engine_gone(peer);
    case Role::steward: return refuse_repairs(tables_, connections_);
    case Role::client: return close_channel(peer);
    case Role::inspector: return;
  }
}

// -- engines and their channels -------------------------------------------------------------------

void Keeper::on_engine_gone(const Peer& peer) {
  Slot& slot = tables_.slots[peer.slot];
  slot.use = Slot::Use::unswept;
  slot.death = tables_.next_death++;
  slot.last_owner = fmt::format("engine {} (pid {})", peer.engine, peer.pid);
  // The keeper is not the parent of a guest, so it does not learn the exit code: the guest may have
  // lost its GPU context.
  const bool is_guest = bool(peer.pidfd);
  if (is_guest && tables_.pool.is_on_gpu() && tables_.options.asked.gpu_fault != GpuFault::keep)
    slot.drops_unheld = true;
  sweep(tables_, connections_, peer.slot);
  expect_sweep(peer.slot);
  // If it is not written, engines leave the dead one's requests to it.
  if (auto told = write_end(tables_.pool.board, {peer.slot, slot.life}); !told)
    supervisor_.fail(told.error());
  const auto left = tables_.channels.remove_engine(peer.socket.get());
  tell_engines();
  spdlog::info("{} is gone: {} channels{}", slot.last_owner, left.had, describe(left));
}

/// Replaces a steward that has not swept the slot in time: it is stopped or hangs, and engines
/// would run out of slots and blocks. That costs nothing, because a sweep can be done again from
/// its start.
void Keeper::expect_sweep(std::uint32_t number) {
  loop_.after(kPatienceWithSteward, [this, number, death = tables_.slots[number].death,
                                     steward = tables_.steward.pid] {
    const Slot& slot = tables_.slots[number];
    const bool is_swept = slot.use != Slot::Use::unswept || slot.death != death;
    if (is_swept || steward == 0 || tables_.steward.pid != steward) return;
    spdlog::error("the steward (pid {}) has not swept slot {} of {} for {} s; it is replaced",
                  steward, number, slot.last_owner, kPatienceWithSteward.count());
    kill_by_pidfd(tables_.steward.pidfd);
  });
}

void Keeper::on_steward() {
  sweep_all(tables_, connections_);
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (tables_.slots[slot].use == Slot::Use::unswept) expect_sweep(slot);
}

/// Logs, a second after a channel was given, which engines have not answered.
void Keeper::expect_answers() {
  if (!tables_.channels.has_unanswered() || std::exchange(expects_answers_, true)) return;
  loop_.after(Channels::kPatience + std::chrono::milliseconds(100), [this] {
    expects_answers_ = false;
    static LogLimit limit;
    for (const auto& [socket, peer] : tables_.peers)
      if (tables_.channels.is_silent(socket))
        if (const auto note = limit.admit())
          spdlog::warn(
              "engine {} (pid {}) does not answer: it is stopped (kill -CONT it) or hangs; the "
              "others serve all clients{}",
              peer.engine, peer.pid, *note);
    expect_answers();
  });
}

void Keeper::tell_engines() {
  const bool all_are_told = tables_.channels.tell_engines(engine_line_);
  expect_answers();
  if (all_are_told || tells_again_soon_) return;
  tells_again_soon_ = true;
  loop_.after(kTellAgain, [this] {
    tells_again_soon_ = false;
    tell_engines();
  });
}

/// A client's hello was accepted: its channel's memory is made, and then on_made() welcomes it.
void Keeper::make_channel(Peer& client) {
  if (auto may = connections_.may_answer(client); !may)
    return connections_.refuse(client, may.error());
  maker_.make(client.channel, client.uid, tables_.channels.find(client.channel)->bytes);
}

void Keeper::on_made(std::uint64_t channel, Expected<ChannelMemory> memory) {
  Peer* client = tables_.client_of(channel);
  KV_CHECK(client != nullptr, channel);  // a client that leaves cancels its channel
  if (!memory) return connections_.refuse(*client, memory.error());
  if (auto may = connections_.may_answer(*client); !may) {
    maker_.free(channel, client->uid, std::move(*memory), tables_.channels.find(channel)->bytes);
    return connections_.refuse(*client, may.error());
  }
  if (auto welcomed = welcome_to_channel(tables_, *client, std::move(*memory)); !welcomed)
    return connections_.refuse(*client, welcomed.error());
  client->awaits_channel = false;
  connections_.answered(*client);
}

void Keeper::on_pinned(std::uint64_t channel, Expected<void> result) {
  if (!result) return connections_.refuse(*tables_.client_of(channel), result.error());
  tables_.channels.pinned(channel);
  tell_engines();
}

void Keeper::on_freed(std::uint64_t channel) { tables_.channels.freed(channel); }

void Keeper::close_channel(const Peer& client) {
  const auto channel = tables_.channels.find(client.channel);
  if (!channel) return;
  pinner_.cancel(client.channel);
  ChannelMemory memory = *tables_.channels.close(client.channel);
  if (memory.answers)
    maker_.free(client.channel, client.uid, std::move(memory), channel->bytes);
  else if (!maker_.cancel(client.channel))
    on_freed(client.channel);
  tell_engines();
}

/// An engine cannot serve a channel. If no other can, either, refuses the channel's client with the
/// engine's reason. Other clients are not affected.
void Keeper::on_channel_refused(const Peer& engine, const ChannelRefused& message) {
  if (tables_.channels.take_back(message.channel, engine.socket.get())) return;
  if (Peer* client = tables_.client_of(message.channel))
    connections_.refuse(*client, {message.error, message.reason.str()});
}

}  // namespace kvhive
