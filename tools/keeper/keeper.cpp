#include "tools/keeper/keeper.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/check.hpp"
#include "base/exit_codes.hpp"
#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "ipc/channel/board.hpp"
#include "ipc/pidfd.hpp"
#include "ipc/text_memory.hpp"
#include "tools/keeper/operator_orders.hpp"
#include "tools/keeper/status.hpp"
#include "tools/keeper/steward_orders.hpp"
#include "tools/keeper/succession/table_rows.hpp"
#include "tools/keeper/welcome.hpp"
#include "tools/privilege/system_calls.hpp"

namespace kvhive {
namespace {

/// Delay before an engine whose queue was full is told again.
constexpr std::chrono::milliseconds kTellAgain{50};
/// How long the steward may take to sweep a slot. It takes milliseconds, or a second on a machine
/// that swaps.
constexpr std::chrono::seconds kPatienceWithSteward{10};
/// It looks at the whole pool.
constexpr std::chrono::seconds kPatienceWithRepair{30};

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

/// Nothing in it if the front has not passed it on.
PassedOn passed_on(const signalfd_siginfo& signal) {
  return signal.ssi_code == SI_QUEUE ? PassedOn::of(signal.ssi_int) : PassedOn{};
}

/// Processes outside this PID namespace have no number in it, and nor has the terminal.
std::string sender_of(const signalfd_siginfo& signal) {
  if (signal.ssi_pid != 0)
    return fmt::format("pid {} ({})", signal.ssi_pid, program_of(signal.ssi_pid));
  const bool is_of_the_terminal =
      signal.ssi_code == SI_KERNEL || passed_on(signal).is_of_the_terminal;
  return is_of_the_terminal ? "the terminal" : "a process outside this PID namespace";
}

Tables empty_tables(const Estate& estate) {
  Domains domains = estate.domains;
  // They may have changed; the rules of `kvhive reload` name numbers, so nobody is asked.
  const auto used = domains.use(estate.options);
  KV_CHECK(used.has_value());
  return {.front = estate.front,
          .options = {.asked = estate.options, .models = {}, .places = {}},
          .domains = std::move(domains),
          .pool = {},
          .peers = {},
          .steward = {},
          .engines = {},
          .channels = Channels(quota_of(estate.options)),
          .repairs = {},
          .orders = {},
          .memory = {},
          .changed_peers = {},
          .due_welcomes = {}};
}

/// An engine that answers now and then begins and ends to be silent again and again.
LogLimit& limit_of_silence() {
  static LogLimit limit;
  return limit;
}

/// What becomes of a dead engine's channels: "2 go on, 1 waits for an engine".
std::string describe(const Channels::Left& left) {
  return left.had == 0 ? ""
                       : fmt::format(": {} go on, {} waiting for an engine",
                                     left.had - left.waiting, left.waiting);
}

}  // namespace

// -- start and end --------------------------------------------------------------------------------

std::vector<std::string> Keeper::steward_flags(const Estate& estate) {
  const Options& options = estate.options;
  std::vector<std::string> flags = {"--socket",
                                    estate.listener.path(),
                                    "--socket-identity",
                                    estate.listener.identity(),
                                    "--keeper",
                                    std::to_string(estate.front),
                                    "--lifeline",
                                    std::to_string(estate.lifeline.get()),
                                    "--log-level",
                                    std::string(to_string(options.log_level)),
                                    "--system-call-filter",
                                    std::string(to_string(options.system_call_filter))};
  if (!options.log_file.empty()) flags.insert(flags.end(), {"--log-file", options.log_file});
  if (options.lock_metadata) flags.push_back("--lock-metadata");
  if (estate.listener.made_directory()) flags.push_back("--remove-directory");
  return flags;
}

Expected<std::unique_ptr<Keeper>> Keeper::start(Estate& estate) {
  if (auto sound = check_quota(estate.options); !sound) return forward_error(sound);
  Legacy none{.ledger = std::make_unique<Ledger>(estate.ledger),
              .tables = empty_tables(estate),
              .strays = {}};
  auto keeper = make(estate, std::move(none));
  if (!keeper) return keeper;
  auto prepared = (*keeper)->prepare();
  if (!prepared) return forward_error(prepared);
  if (!*prepared) return nullptr;
  return keeper;
}

Keeper::Legacy Keeper::read_legacy(const Estate& estate) {
  Legacy legacy{.ledger = std::make_unique<Ledger>(estate.ledger),
                .tables = empty_tables(estate),
                .strays = {}};
  restore_pool(legacy.tables, estate.ledger);
  restore_daemon(legacy.tables, *legacy.ledger);
  restore_processes(legacy.tables, *legacy.ledger);
  std::set<int> known = descriptors_in(legacy.tables);
  known.insert(estate.descriptors.begin(), estate.descriptors.end());
  const Inbox& inbox = estate.ledger.inbox();
  if (inbox.was_left_undone(*legacy.ledger))
    for (const int fd : inbox.packet.descriptors()) known.insert(fd);
  legacy.strays = find_strays(known, estate.listener.fd());
  return legacy;
}

Expected<std::unique_ptr<Keeper>> Keeper::resume(Estate& estate, Legacy legacy) {
  auto keeper = make(estate, std::move(legacy));
  if (!keeper) return keeper;
  if (auto gone_on = (*keeper)->go_on(); !gone_on) return forward_error(gone_on);
  return keeper;
}

Expected<std::unique_ptr<Keeper>> Keeper::make(Estate& estate, Legacy legacy) {
  // Signals are blocked since the front has started, and read from signalfds by the event loop. A
  // stop signal must not end the process before it has removed the socket and ended its children.
  // What a terminal sends, it sends to the front, too.
  signal(SIGINT, SIG_IGN);
  take_descriptor_table();
  auto loop = EventLoop::create();
  if (!loop) return forward_error(loop);
  std::unique_ptr<Keeper> keeper(new Keeper(estate, std::move(legacy), std::move(*loop)));
  if (auto watched = keeper->watch_signals(); !watched) return forward_error(watched);
  return keeper;
}

Keeper::Keeper(Estate& estate, Legacy legacy, EventLoop loop)
    : estate_(estate),
      loop_(std::move(loop)),
      tables_(std::move(legacy.tables)),
      ledger_(std::move(legacy.ledger)),
      strays_(std::move(legacy.strays)),
      connections_(tables_, loop_, *this, limits_for(estate.limits.descriptors)),
      supervisor_(tables_, loop_, *this),
      pinner_(loop_, *this),
      maker_(loop_, *this) {
  connections_.receive_into(estate_.ledger.inbox());
  loop_.after_each([this] { settle(); });
}

/// Kills the keeper's children, so that no process of the pool outlives the keeper. It does not ask
/// them to end: the pool's memory is freed with them, and they are built to be killed at any
/// instruction.
Keeper::~Keeper() {
  // Before the steward is killed: if the keeper is killed before it has removed them, the steward
  // does it.
  estate_.listener.remove_files();
  supervisor_.stop_all();
  if (tables_.pool.gpu_memory.is_running()) end_guests();
  tables_.pool.gpu_memory.end();  // last, because the engines have had its memory mapped
}

Expected<bool> Keeper::prepare() {
  connections_.listen(estate_.listener.fd());
  // The steward is started before anything that takes time, because it removes the socket if front
  // and keeper are killed.
  supervisor_.start_steward(steward_flags(estate_), estate_.lifeline.get());
  if (const Error& fatal = supervisor_.fatal(); fatal.code != Errc::none)
    return failure(fatal.code, fatal.text);
  settle();
  auto pool = make_pool(tables_.options, tables_.domains, stop_signals_.get());
  if (!pool) return forward_error(pool);
  if (!*pool) return false;
  tables_.pool = std::move(**pool);
  write_pool(tables_, estate_.ledger);
  settle();
  estate_.ledger.head().is_made = 1;
  if (tables_.pool.gpu_memory.is_running())
    loop_.watch(tables_.pool.gpu_memory.pidfd().get(), [this] { on_gpu_memory_lost(); });
  if (auto kept = keep_only_own_calls(); !kept) return forward_error(kept);
  return true;  // the engines start once the steward has formatted the pool
}

/// From then on the keeper listens to strangers. Its children inherit the filter; what a GPU's
/// driver calls in them is not known.
Expected<void> Keeper::keep_only_own_calls() const {
  if (tables_.pool.is_on_gpu()) return {};
  return keep_only_calls_of(Program::keeper, tables_.options.asked.system_call_filter);
}

/// For a successor: does again, or does the rest of, what the killed keeper may not have finished.
/// The packet that was taken is handled before any other, from the tables that the other had.
Expected<void> Keeper::go_on() {
  if (estate_.ledger.head().is_ending != 0) {
    loop_.stop();
    return {};
  }
  if (auto kept = keep_only_own_calls(); !kept) return kept;
  const bool was_ordered =
      std::any_of(tables_.orders.begin(), tables_.orders.end(),
                  [](auto& order) { return order.second.what == Order::What::take_over; });
  spdlog::log(was_ordered ? spdlog::level::info : spdlog::level::warn,
              "the keeper {}; this one goes on: {} connections, {} lost between two steps",
              was_ordered ? "has left" : "is gone", tables_.peers.size(),
              strays_.connections.size());
  supervisor_.describe_steward(steward_flags(estate_), estate_.lifeline.get());
  for (auto& [socket, peer] : tables_.peers) connections_.resume(peer);
  for (UniqueFd& connection : strays_.connections) connections_.adopt(std::move(connection));
  maker_.close(std::exchange(strays_.others, {}));
  if (tables_.pool.gpu_memory.is_running())
    loop_.watch(tables_.pool.gpu_memory.pidfd().get(), [this] { on_gpu_memory_lost(); });
  supervisor_.resume();
  // They are written down. An engine that waits for its welcome is to hear nothing else before.
  for (const int socket : std::exchange(tables_.due_welcomes, {})) send_due_welcome(socket);
  // Before the packet, which may be what causes a channel to be made or pinned: it must not be
  // caused twice.
  go_on_with_channels();
  if (estate_.ledger.inbox().was_left_undone(*ledger_)) connections_.finish_inbox();
  repeat_orders(tables_);
  expect_sweeps();
  connections_.listen(estate_.listener.fd());
  if (!tables_.is_told) check_ready();
  options_are_due_ = true;  // nobody knows whether they were told
  end_hand_over();
  settle();
  return {};
}

void Keeper::go_on_with_channels() {
  for (const auto& [channel, stage] : tables_.channels.stages()) {
    const Peer* client = tables_.client_of(channel);
    // Its row goes with its client's, so there is one.
    KV_CHECK(client != nullptr, channel);
    const std::size_t bytes = tables_.channels.find(channel)->bytes;
    if (stage == Channels::Stage::reserved) maker_.make(channel, client->uid, bytes);
    if (stage != Channels::Stage::sealed) continue;
    if (auto memory = tables_.channels.pinned_in_part(channel))
      pinner_.pin(channel, client->uid, **memory, bytes);
    else
      connections_.refuse(*tables_.client_of(channel), memory.error());
  }
  tables_.channels.tell_all_again();
  tell_engines();
}

Expected<void> Keeper::watch_signals() {
  auto stop = open_signals({SIGTERM});
  if (!stop) return forward_error(stop);
  auto hangup = open_signals({SIGHUP});
  if (!hangup) return forward_error(hangup);
  stop_signals_ = std::move(*stop);
  hangup_signals_ = std::move(*hangup);
  loop_.watch(stop_signals_.get(), [this] { on_stop_signal(); });
  loop_.watch(hangup_signals_.get(), [this] { on_hangup_signal(); });
  loop_.watch(estate_.front_pidfd.get(), [this] { on_front_gone(); });
  return {};
}

void Keeper::on_front_gone() {
  loop_.unwatch(estate_.front_pidfd.get());
  if (estate_.ledger.head().is_ending != 0) return loop_.stop();
  if (!tables_.is_told)
    return supervisor_.fail(
        {Errc::peer_died, "the process that was started as kvhived was killed"});
  spdlog::warn("the front (pid {}) was killed; this process takes its place", estate_.front);
  flush_log();
  const Error error = become_front(estate_, {});
  spdlog::error("nobody takes the front's place, and nobody this keeper's if it is killed: {}",
                error.text);
}

// -- after each event -----------------------------------------------------------------------------

/// Writes down what the event has changed, then does what was decided: what others see of it must
/// not be forgotten. Then nothing names what was dropped any more, and it is closed.
void Keeper::settle() {
  do write_down();
  while (act());
  for (const auto& action : std::exchange(after_commit_, {})) action();
  if (hands_over_) leave();
}

void Keeper::write_down() {
  if (auto dropped = tables_.channels.take_dropped(); !dropped.empty())
    after_commit([fds = std::make_shared<std::vector<UniqueFd>>(std::move(dropped))] {});
  put_changes(tables_, *ledger_);
  estate_.ledger.inbox().handled_by = ledger_->next();
  ledger_->commit();
  estate_.ledger.head().fruitless = 0;
}

/// Returns whether there was anything to do.
bool Keeper::act() {
  bool has_acted = supervisor_.let_children_go();
  for (const int socket : std::exchange(tables_.due_welcomes, {})) {
    send_due_welcome(socket);
    has_acted = true;
  }
  has_acted |= send_due_orders(tables_, connections_);
  if (std::exchange(options_are_due_, false))
    for (const auto& [socket, peer] : tables_.peers)
      if (peer.is_welcome && !peer.is_welcome_due &&
          (peer.role == Role::engine || peer.role == Role::steward))
        send_options(peer);
  if (!drain_engines(tables_)) try_again_soon();
  has_acted |= answer_orders(tables_, connections_);
  if (tables_.is_ready && !tables_.is_told && on_ready_) {
    on_ready_();
    tables_.is_told = has_acted = true;
  }
  return has_acted;
}

void Keeper::send_due_welcome(int socket) {
  const auto found = tables_.peers.find(socket);
  if (found == tables_.peers.end() || !found->second.is_welcome_due) return;
  Peer& peer = found->second;
  peer.is_welcome_due = false;
  tables_.touch(peer);
  if (auto sent = send_welcome(tables_, peer); !sent)
    return connections_.refuse(peer, sent.error());
  if (peer.role == Role::steward || peer.role == Role::engine) send_options(peer);
  if (peer.role == Role::steward) return on_steward();
  if (peer.role == Role::engine) return tell_engines();
  if (peer.role != Role::client) return;
  peer.awaits_channel = false;
  connections_.answered(peer);
  tables_.channels.taken(peer.channel);
}

// -- signals --------------------------------------------------------------------------------------

void Keeper::on_stop_signal() {
  signalfd_siginfo signal{};
  if (read(stop_signals_.get(), &signal, sizeof signal) != sizeof signal) return;
  estate_.ledger.head().is_ending = 1;
  spdlog::info("stopping: SIG{} from {}", passed_on(signal).number == SIGINT ? "INT" : "TERM",
               sender_of(signal));
  loop_.stop();
}

/// Called on SIGHUP, which says that the log file was renamed. The keeper and its children open it
/// again.
void Keeper::on_hangup_signal() {
  signalfd_siginfo signal{};
  if (read(hangup_signals_.get(), &signal, sizeof signal) != sizeof signal) return;
  const std::string sender = sender_of(signal);
  if (tables_.options.asked.log_file.empty())
    return spdlog::info("SIGHUP from {}: there is no log file to reopen", sender);
  if (auto reopened = reopen_log(); !reopened)
    return spdlog::error("SIGHUP from {}: {}", sender, reopened.error().text);
  spdlog::info("SIGHUP from {}: log file reopened", sender);
  for (const auto& [socket, peer] : tables_.peers)
    if (peer.is_welcome && tables_.child_of(peer) != nullptr)
      if (auto sent = send_packet(socket, ReopenLog{}); !sent)
        spdlog::warn("pid {} was not told to reopen the log file: {}", peer.pid, sent.error().text);
}

Expected<void> Keeper::run(const std::function<void()>& on_ready) {
  on_ready_ = on_ready;
  settle();
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
    case MessageType::status_request: return send_status(peer, packet.as<StatusRequest>()->ticket);
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
    if (const auto end = tables_.last_ends.find(peer.engine);
        end != tables_.last_ends.end() && !end->second.back_after)
      end->second.back_after = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - end->second.since);
    tables_.touch(peer);
    check_ready();
    return true;
  }
  if (packet.is(MessageType::drained)) {
    on_drained(tables_, peer);
    return true;
  }
  const auto refused = packet.as<ChannelRefused>();
  if (!refused && !packet.is(MessageType::channel_taken)) return false;
  const bool takes_more = tables_.channels.answered(peer.socket.get());
  if (silent_engines_.remove(peer.number))
    if (const auto note = limit_of_silence().admit())
      spdlog::info("engine {} (pid {}) answers again{}", peer.engine, peer.pid, *note);
  if (refused) on_channel_refused(peer, *refused);
  if (takes_more) tell_engines();
  return true;
}

bool Keeper::on_inspector_packet(Peer& peer, const Packet& packet) {
  if (const auto order = packet.as<Order>()) {
    take_order(peer, *order, packet.tail());
    return true;
  }
  const auto request = packet.as<RepairRequest>();
  if (!request || request->care > Care::reset_cache) return false;
  request_repair(tables_, connections_, peer, *request);
  expect_repair(tables_.next_ticket - 1);
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
  if (auto room = ledger_->make_room(); !room) return connections_.refuse(peer, room.error());
  if (auto welcomed = welcome(tables_, peer, hello); !welcomed)
    return connections_.refuse(peer, welcomed.error());
  if (peer.role == Role::client) make_channel(peer);
}

void Keeper::send_status(Peer& peer, std::uint64_t ticket) {
  if (peer.is_stranger())  // the status names other users
    return connections_.refuse(
        peer,
        {Errc::bad_argument, "only the daemon's own user, or root, may ask who is connected"});
  const auto domain = tables_.domains.of(PeerIdentity::of_socket(peer.socket.get()));
  const auto text = write_text_memory(status_of(tables_, estate_.listener.path(), estate_.command,
                                                domain ? std::optional(*domain) : std::nullopt));
  if (!text) return connections_.refuse(peer, text.error());
  if (!send_packet(peer.socket.get(), Status{ticket}, {text->get()})) connections_.hang_up(peer);
}

void Keeper::check_ready() {
  const auto serving =
      std::count_if(tables_.peers.begin(), tables_.peers.end(), [this](const auto& entry) {
        return entry.second.is_serving && tables_.child_of(entry.second) != nullptr;
      });
  if (tables_.is_ready || tables_.engines.empty() ||
      serving < static_cast<std::ptrdiff_t>(tables_.engines.size()))
    return;
  tables_.is_ready = true;  // the user is told once that is written down
}

void Keeper::on_child_end(const Child& child, pid_t pid) {
  const Peer* peer = tables_.peer_of(pid);
  if (peer == nullptr) return;
  end_of_child_is_known_ = child.is_end_known;
  if (child.last_exit_code == kExitDeviceLost) on_lost_device(tables_, connections_, *peer);
  connections_.drop(peer->socket.get());
}

void Keeper::on_gone(const Peer& peer) {
  for (auto& [ticket, repair] : tables_.repairs)
    if (repair.asker == peer.socket.get()) repair.asker = -1;
  for (auto& [ticket, order] : tables_.orders)
    if (order.asker == peer.socket.get()) order.asker = -1;
  switch (peer.role) {
    case Role::engine: return on_engine_gone(peer);
    case Role::steward: return refuse_repairs(tables_, connections_);
    case Role::client: return close_channel(peer);
    case Role::inspector: return;
  }
}

// -- engines and their channels -------------------------------------------------------------------

void Keeper::on_engine_gone(const Peer& peer) {
  silent_engines_.remove(peer.number);
  Slot& slot = tables_.slots[peer.slot];
  slot.use = Slot::Use::unswept;
  slot.death = tables_.next_death++;
  slot.last_owner = fmt::format("engine {} (pid {})", peer.engine, peer.pid);
  // Guests choose their numbers.
  if (tables_.last_ends.size() < kMaxProcesses || tables_.last_ends.contains(peer.engine))
    tables_.last_ends[peer.engine] = {.pid = peer.pid,
                                      .death = slot.death,
                                      .time = std::chrono::system_clock::now(),
                                      .since = std::chrono::steady_clock::now(),
                                      .requests = {},
                                      .back_after = {}};
  // The keeper is not the parent of a guest, nor of what an earlier keeper started, so it does not
  // learn the exit code: the engine may have lost its GPU context.
  const bool is_end_unknown = peer.pidfd || !end_of_child_is_known_;
  if (is_end_unknown && tables_.pool.is_on_gpu() &&
      tables_.options.asked.gpu_fault != GpuFault::keep)
    slot.drops_unheld = true;
  tables_.order_sweep(peer.slot);
  expect_sweep(peer.slot);
  // If it is not written, engines leave the dead one's requests to it.
  if (auto told = write_end(tables_.pool.board, {peer.slot, slot.life}); !told)
    supervisor_.fail(told.error());
  const auto left = tables_.channels.remove_engine(peer.socket.get());
  tell_engines();
  spdlog::info("{} is gone: {} channels{}", slot.last_owner, left.had, describe(left));
  const bool is_own = peer.engine < tables_.engines.size();  // a guest may come again
  if (is_own && tables_.engines[peer.engine].wanted == Wanted::removed)
    refuse_clients_of(peer.engine);
}

/// Clients that want an engine that was removed, and no other.
void Keeper::refuse_clients_of(std::uint32_t engine) {
  std::vector<int> theirs;
  for (const auto& [socket, peer] : tables_.peers) {
    const auto channel =
        peer.has_role(Role::client) ? tables_.channels.find(peer.channel) : std::nullopt;
    if (channel && channel->wanted_engine == engine) theirs.push_back(socket);
  }
  for (const int socket : theirs)
    connections_.refuse(tables_.peers.at(socket),
                        {Errc::not_found, "engine " + std::to_string(engine) + " was removed"});
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

/// No engine can start before it is done.
void Keeper::expect_repair(std::uint64_t ticket) {
  loop_.after(kPatienceWithRepair, [this, ticket, steward = tables_.steward.pid] {
    if (!tables_.repairs.contains(ticket) || steward == 0 || tables_.steward.pid != steward) return;
    spdlog::error("the steward (pid {}) has not repaired the pool for {} s; it is replaced",
                  steward, kPatienceWithRepair.count());
    kill_by_pidfd(tables_.steward.pidfd);
  });
}

void Keeper::on_steward() {
  sweep_all(tables_);
  expect_sweeps();
}

void Keeper::expect_sweeps() {
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot)
    if (tables_.slots[slot].use == Slot::Use::unswept) expect_sweep(slot);
  for (const auto& [ticket, repair] : tables_.repairs) expect_repair(ticket);
}

/// Logs, a second after a channel was given, which engines have not answered.
void Keeper::expect_answers() {
  if (!tables_.channels.has_unanswered() || std::exchange(expects_answers_, true)) return;
  loop_.after(Channels::kPatience + std::chrono::milliseconds(100), [this] {
    expects_answers_ = false;
    for (const auto& [socket, peer] : tables_.peers)
      if (tables_.channels.is_silent(socket) &&
          silent_engines_.add(peer.number, std::chrono::steady_clock::now()))
        if (const auto note = limit_of_silence().admit())
          spdlog::warn(
              "engine {} (pid {}) does not answer: it is stopped (kill -CONT it) or hangs; {}{}",
              peer.engine, peer.pid,
              is_another_serving(peer)
                  ? "others serve the clients, except those that asked for this engine"
                  : "no other engine takes requests, so they wait",
              *note);
    expect_answers();
  });
}

/// Whether there is an engine beside this one that answers and takes requests.
bool Keeper::is_another_serving(const Peer& engine) const {
  const auto serves = [&](const Peer& other) {
    const bool is_wanted =
        std::none_of(tables_.engines.begin(), tables_.engines.end(), [&](const Child& child) {
          return child.pid == other.pid && child.wanted != Wanted::serving;
        });
    return other.is_serving && is_wanted && !tables_.channels.is_silent(other.socket.get());
  };
  return std::any_of(tables_.peers.begin(), tables_.peers.end(), [&](const auto& entry) {
    const Peer& other = entry.second;
    return other.has_role(Role::engine) && other.number != engine.number && serves(other);
  });
}

void Keeper::tell_engines() {
  const bool all_are_told = tables_.channels.tell_engines(engine_line_);
  expect_answers();
  if (!all_are_told) try_again_soon();
}

/// An engine's queue is full.
void Keeper::try_again_soon() {
  if (std::exchange(tells_again_soon_, true)) return;
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
  if (auto completed = tables_.channels.complete(channel, std::move(*memory)); !completed)
    return connections_.refuse(*client, completed.error());
  tables_.owe_welcome(*client);
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
    after_commit([this, id = client.channel, uid = client.uid, bytes = channel->bytes,
                  left = std::make_shared<ChannelMemory>(std::move(memory))] {
      maker_.free(id, uid, std::move(*left), bytes);
    });
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
