// Attacks on the keeper's socket: silence, halves of messages, wrong messages, and too many of all.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "ipc/protocol.hpp"
#include "tests/enemies/attacks.hpp"

namespace kvhive::testing {
namespace {

/// The numbers of all messages, and some that are none.
constexpr std::uint32_t kTypes[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 32,
                                    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 99, ~0u};

void send_some(int socket, const std::string& packet) {
  (void)send(socket, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

template <class Message>
std::string packet_of(const Message& message, PacketHeader header = {}) {
  header.type = Message::kType;
  header.payload_bytes = kPayloadBytes<Message>;
  std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
  packet.append(reinterpret_cast<const char*>(&message), kPayloadBytes<Message>);
  return packet;
}

void be_silent(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(20); i > 0; --i) enemy.hold(enemy.connect());
}

void say_half_a_hello(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  const std::string whole = packet_of(ClientHello{kLeastChannelBytes});
  send_some(socket.get(), whole.substr(0, enemy.below(whole.size())));
  if (enemy.chance(2)) enemy.hold(std::move(socket));
}

void say_a_wrong_hello(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  std::string packet = packet_of(ClientHello{kLeastChannelBytes});
  for (std::uint64_t i = enemy.below(4) + 1; i > 0; --i)  // the header's four words come first
    packet[enemy.below(packet.size())] = static_cast<char>(enemy.bits());
  send_some(socket.get(), packet);
}

void say_many_wrong_hellos(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(50); i > 0; --i) say_a_wrong_hello(enemy);
}

void send_too_much(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  PacketHeader header;
  header.type = static_cast<MessageType>(enemy.one_of(kTypes));
  header.payload_bytes = static_cast<std::uint32_t>(enemy.odd_number());
  std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
  packet.resize(enemy.below(200'000) + sizeof header, 'x');
  send_some(socket.get(), packet);
}

void speak_out_of_turn(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  if (enemy.chance(2)) (void)say_hello(socket.get(), ClientHello{kLeastChannelBytes}, 1000);
  for (std::uint64_t i = enemy.below(6) + 1; i > 0; --i) {
    PacketHeader header;
    header.type = static_cast<MessageType>(enemy.one_of(kTypes));
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes(header.type).value_or(0));
    std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
    for (std::uint32_t byte = 0; byte < header.payload_bytes; ++byte)
      packet += static_cast<char>(enemy.bits());
    send_some(socket.get(), packet);
  }
  if (enemy.chance(4)) enemy.hold(std::move(socket));
}

void claim_another_role(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  switch (enemy.below(3)) {
    case 0: return send_some(socket.get(), packet_of(EngineHello{}));
    case 1: return send_some(socket.get(), packet_of(StewardHello{}));
    default: return send_some(socket.get(), packet_of(InspectorHello{0, 1}));
  }
}

void ask_for_the_status(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  for (std::uint64_t i = enemy.below(50) + 1; i > 0; --i)  // never reads the answers
    send_some(socket.get(), packet_of(StatusRequest{}));
  if (enemy.chance(2)) enemy.hold(std::move(socket));
}

/// Their descriptors count against the daemon's user as long as they are unread, also after the
/// daemon has closed the connections.
void leave_answers_unread(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(8) + 1; i > 0; --i) {
    UniqueFd socket = enemy.connect();
    send_some(socket.get(), packet_of(ClientHello{kLeastChannelBytes}));
    pollfd answer{socket.get(), POLLIN, 0};
    (void)poll(&answer, 1, 50);
    if (enemy.chance(2)) send_some(socket.get(), "x");
    enemy.hold(std::move(socket));
  }
}

void ask_for_a_repair(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  send_some(socket.get(), packet_of(RepairRequest{}));
}

void come_and_go(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(30); i > 0; --i) (void)enemy.connect();
}

void close_half(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  if (enemy.chance(2)) send_some(socket.get(), packet_of(ClientHello{kLeastChannelBytes}));
  shutdown(socket.get(), static_cast<int>(enemy.below(3)));
  enemy.hold(std::move(socket));
}

constexpr Attack kAttacks[] = {
    {"connect and be silent", "S9", be_silent},
    {"half a hello", "S9", say_half_a_hello},
    {"a wrong hello", "S5", say_a_wrong_hello},
    {"many wrong hellos", "S5", say_many_wrong_hellos},
    {"too large packets", "S9", send_too_much},
    {"messages out of turn", "S9", speak_out_of_turn},
    {"claim another role", "S9", claim_another_role, true},
    {"ask for the status and never read it", "S9", ask_for_the_status},
    {"leave answers unread", "S9", leave_answers_unread},
    {"ask for a repair", "S9", ask_for_a_repair},
    {"come and go", "S9", come_and_go},
    {"close half of a connection", "S9", close_half},
};

}  // namespace

std::span<const Attack> connection_attacks() { return kAttacks; }

}  // namespace kvhive::testing
