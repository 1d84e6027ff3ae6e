// What processes send to the keeper's socket, with descriptors of every kind: packets of right and
// wrong types and lengths, several in one go, half-closed connections, ends in the middle. The
// keeper's connections, tables and welcomes are the real ones, with descriptors passed on as before
// Linux 6.16.
//
// Strangers are played, which needs root. Without root all senders are of the daemon's own user.
// What these send is received, so they do not send descriptors whose close lingers.

#include <dirent.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/memory/memory_object.hpp"
#include "ipc/listener.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/stranger_descriptors.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/no_tables.hpp"
#include "tools/keeper/connections.hpp"
#include "tools/keeper/welcome.hpp"

namespace kvhive::testing {
namespace {

constexpr ConnectionLimits kLimits{
    .of_user = 5, .silent_of_user = 2, .silent_of_all = 3, .kept_for_owner = 16};
constexpr std::array kTypes = {MessageType::engine_hello,   MessageType::steward_hello,
                               MessageType::client_hello,   MessageType::serving,
                               MessageType::status_request, MessageType::inspector_hello,
                               MessageType::formatted,      MessageType::repair_request,
                               MessageType::refused,        MessageType::requests_sealed};

/// The keeper without its children: routes packets as keeper.cpp does.
class SmallKeeper : public Connections::Events {
 public:
  SmallKeeper() {
    chmod(directory_.path().c_str(), 0711);
    for (std::size_t i = 0; i < 3; ++i)
      tables_.pool.objects[i] = create_memory("kvhive-fuzz", 4096).value();
    connections_.listen(listener_.fd());
  }

  const std::string& path() const { return listener_.path(); }
  bool has_peers() const { return !tables_.peers.empty(); }

  /// Handles what has come, in a few rounds of the loop: what stops the loop may be the first event
  /// of its round.
  void serve() {
    int rounds = 4;
    const std::function<void()> on_round = [&] {
      send_due_welcomes();
      (void)tables_.channels.take_dropped();  // as after a commit
      check_tables();
      if (--rounds == 0) return loop_.stop();
      loop_.post(on_round);
    };
    on_round();
    loop_.run();
  }

  void on_packet(Peer& peer, Packet packet) override {
    KV_CHECK(!peer.is_stranger() || packet.fds.empty(), "a stranger's descriptor was received");
    if (peer.has_role(Role::client) && packet.is(MessageType::requests_sealed)) return seal(peer);
    const bool is_hello =
        packet.is(MessageType::client_hello) || packet.is(MessageType::engine_hello) ||
        packet.is(MessageType::steward_hello) || packet.is(MessageType::inspector_hello);
    if (!is_hello || peer.is_welcome)
      return connections_.refuse(peer, {Errc::bad_format, "unexpected message"});
    if (!connections_.identify(peer, packet)) return;
    if (auto welcomed = welcome(tables_, peer, packet); !welcomed)
      return connections_.refuse(peer, welcomed.error());
    KV_CHECK(peer.role == Role::client || !peer.is_stranger(), "a stranger got the pool");
    if (peer.role == Role::client) make_channel(peer);
  }
  void on_gone(const Peer& peer) override {
    if (peer.role != Role::client) return;
    KV_CHECK(tables_.channels.close(peer.channel).has_value());
    tables_.channels.freed(peer.channel);
  }

 private:
  void make_channel(Peer& client) {
    if (tables_.channels.find(client.channel)->bytes > kLeastChannelBytes)
      return connections_.refuse(client, {Errc::out_of_memory, "too large for a fuzzer"});
    auto completed =
        tables_.channels.complete(client.channel, make_channel_memory(kLeastChannelBytes));
    if (!completed) return connections_.refuse(client, completed.error());
    tables_.owe_welcome(client);
  }

  void send_due_welcomes() {
    for (const int socket : std::exchange(tables_.due_welcomes, {})) {
      const auto found = tables_.peers.find(socket);
      if (found == tables_.peers.end() || !found->second.is_welcome_due) continue;
      found->second.is_welcome_due = false;
      Peer& peer = found->second;
      if (auto sent = send_welcome(tables_, peer); !sent)
        connections_.refuse(peer, sent.error());
      else if (peer.role == Role::client)
        taken(peer);
    }
  }

  void taken(Peer& client) {
    client.awaits_channel = false;
    connections_.answered(client);
    tables_.channels.taken(client.channel);
  }

  void seal(Peer& client) {
    if (auto sealed = tables_.channels.sealed(client.channel); !sealed)
      return connections_.refuse(client, sealed.error());
    tables_.channels.pinned(client.channel);
  }

  void check_tables() const {
    std::map<uid_t, std::size_t> of_user, silent_of_user;
    std::size_t silent = 0;
    for (const auto& [socket, peer] : tables_.peers) {
      KV_CHECK(socket == peer.socket.get() && peer.number != 0);
      KV_CHECK(!peer.has_role(Role::client) || tables_.channels.find(peer.channel).has_value());
      if (!peer.is_stranger()) continue;
      KV_CHECK(++of_user[peer.uid] <= kLimits.of_user);
      if (peer.has_spoken) continue;
      KV_CHECK(++silent_of_user[peer.uid] <= kLimits.silent_of_user);
      KV_CHECK(++silent <= kLimits.silent_of_all);
    }
  }

  TempDirectory directory_;
  EventLoop loop_ = EventLoop::create(EventLoop::Escape::leaves_run).value();
  Tables tables_ = no_tables();
  Listener listener_ =
      Listener::open(directory_.path() / "s", SocketPermissions{0666, 0711, std::nullopt},
                     PeerDescriptors::passed_on)
          .value();
  Connections connections_{tables_, loop_, *this, kLimits};
};

/// One end of a connection and who is there.
struct Sender {
  UniqueFd socket;
  bool is_stranger = false;
};

class Senders {
 public:
  explicit Senders(const SmallKeeper& keeper) : keeper_(keeper) {}

  void act(FuzzInput& input) {
    Sender& sender = senders_[input.take<std::uint8_t>() % senders_.size()];
    const auto action = input.take<std::uint8_t>() % 8;
    if (!sender.socket) return connect(sender, static_cast<int>(action));
    switch (action) {
      case 0: sender.socket = UniqueFd(); break;
      case 1: shutdown(sender.socket.get(), SHUT_RD); break;
      case 2: shutdown(sender.socket.get(), SHUT_WR); break;
      case 3: read_answer(sender, input); break;
      default: send(sender, input);
    }
  }
  void close_own_descriptors() { descriptors_.close_own(); }

 private:
  void connect(Sender& sender, int who) const {
    static const bool can_play = can_play_users();
    sender.is_stranger = can_play && who % 4 != 0;
    std::optional<PlayingUser> playing;
    if (sender.is_stranger) playing.emplace(who % 2 == 0 ? kAlice : kBob);
    if (auto socket = connect_to_daemon(keeper_.path(), 0)) sender.socket = std::move(*socket);
  }

  void send(const Sender& sender, FuzzInput& input) {
    std::string packet = packet_of(input);
    std::vector<int> fds;
    for (auto n = input.take<std::uint8_t>() % 12; n > 0; --n) {  // up to more than it has room for
      const auto kind =
          DescriptorKind(input.take<std::uint8_t>() % unsigned(DescriptorKind::count));
      if (kind == DescriptorKind::lingering && !sender.is_stranger) continue;
      fds.push_back(descriptors_.make(kind, sender.socket.get()));
    }
    send_descriptors(sender.socket.get(), packet, fds);
    descriptors_.close_lingering();
  }

  /// A packet whose type and length are right, mostly.
  static std::string packet_of(FuzzInput& input) {
    PacketHeader header;
    const auto shape = input.take<std::uint8_t>();
    header.type = kTypes[shape % kTypes.size()];
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes(header.type).value_or(0));
    std::string payload(header.payload_bytes, '\0');
    if (header.type == MessageType::client_hello) {
      const ClientHello hello{kLeastChannelBytes};
      std::memcpy(payload.data(), &hello, std::min(sizeof hello, payload.size()));
    } else if (header.type == MessageType::inspector_hello) {
      const InspectorHello hello{layout_hash({}), 1};
      std::memcpy(payload.data(), &hello, std::min(sizeof hello, payload.size()));
    }
    if (shape >= 0x80)
      input.fill(std::as_writable_bytes(std::span(payload).first(
          std::min<std::size_t>(payload.size(), input.take<std::uint8_t>()))));
    if (shape >= 0xe0) input.fill(std::as_writable_bytes(std::span(&header, 1)));
    std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
    packet += payload;
    if (shape >= 0xc0) packet.resize(input.take<std::uint8_t>() + 1u);
    return packet;
  }

  /// May seal the requests that came with a welcome.
  static void read_answer(const Sender& sender, FuzzInput& input) {
    if (look_at_next_packet(sender.socket.get()) == NextPacket::none) return;
    const auto answer = receive_packet(sender.socket.get());
    if (!answer || !*answer || !(*answer)->is(MessageType::client_welcome)) return;
    if (input.take<std::uint8_t>() % 2 == 0)
      KV_CHECK(seal_against_new_writers((*answer)->fds.at(0).get(), "requests"));
  }

  const SmallKeeper& keeper_;
  std::array<Sender, 10> senders_;
  StrangerDescriptors descriptors_;
};

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  KV_CHECK(folder != nullptr, errno);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace
}  // namespace kvhive::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  using namespace kvhive::testing;
  static SmallKeeper& keeper = [&]() -> SmallKeeper& {
    spdlog::set_level(spdlog::level::off);
    return *new SmallKeeper;  // never destroyed: as the keeper, it ends with its process
  }();
  const std::size_t before = open_descriptors();  // the fuzzer opens some between two inputs
  FuzzInput input(data, size);
  {
    Senders senders(keeper);
    while (!input.is_empty()) {
      senders.act(input);
      const bool in_one_go = (input.take<std::uint8_t>() & 1) != 0;
      if (in_one_go) continue;
      keeper.serve();
    }
    senders.close_own_descriptors();
    keeper.serve();
  }
  // All have left: the keeper has nothing of them, once the closers it has forked are done.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(8);
  while (keeper.has_peers() || open_descriptors() != before) {
    KV_CHECK(std::chrono::steady_clock::now() < end, keeper.has_peers(), open_descriptors(),
             before);
    keeper.serve();
  }
  return 0;
}
