#pragma once
// How control messages travel over the daemon's Unix socket (SOCK_SEQPACKET). A packet is a header,
// the payload of its type (ipc/control_messages.hpp), and an optional tail of JSON; descriptors go
// beside it. A packet is copied into private memory once and then checked; the receiver closes the
// connection on anything malformed.

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "ipc/control_messages.hpp"

namespace kvhive {

/// The first bytes of every packet, in every version of the protocol.
struct PacketHeader {
  std::uint32_t magic = kProtocolMagic;
  std::uint32_t version = kProtocolVersion;
  MessageType type{};
  std::uint32_t payload_bytes = 0;  ///< the tail begins after them
};

/// One packet as it was received. Its type is known, and its payload has that type's size.
class Packet {
 public:
  MessageType type() const { return type_; }
  bool is(MessageType type) const { return type_ == type; }

  /// The message, if it is a T.
  template <class T>
  std::optional<T> as() const {
    if (type_ != T::kType) return std::nullopt;
    T message;
    if constexpr (kPayloadBytes<T> != 0) std::memcpy(&message, body_.data(), sizeof(T));
    return message;
  }

  std::string_view tail() const { return std::string_view(body_).substr(payload_bytes_); }

  std::vector<UniqueFd> fds;
  /// Descriptors were sent that this process could not be given: most likely it has as many open
  /// as its limit allows. The message itself is whole.
  bool lost_fds = false;

 private:
  friend Expected<std::optional<Packet>> receive_packet(int socket);
  MessageType type_{};
  std::size_t payload_bytes_ = 0;
  std::string body_;  ///< payload, then tail
};

/// Sends one packet. Errors: Errc::peer_died, or what the system says (the peer's queue is full).
[[nodiscard]] Expected<void> send_bytes(int socket, MessageType type,
                                        std::span<const std::byte> payload,
                                        const std::vector<int>& fds, std::string_view tail);

/// Sends one message. `tail` is cut after 256 KiB.
template <class T>
[[nodiscard]] Expected<void> send_packet(int socket, const T& message,
                                         const std::vector<int>& fds = {},
                                         std::string_view tail = {}) {
  return send_bytes(socket, T::kType, std::as_bytes(std::span(&message, 1)).first(kPayloadBytes<T>),
                    fds, tail);
}

/// The next packet. Nothing = the peer has closed the connection. Errors: Errc::layout_mismatch =
/// the peer speaks another version; bad_format = malformed; os_error = what the system says.
[[nodiscard]] Expected<std::optional<Packet>> receive_packet(int socket);

/// The process at the other end, as the kernel knows it: pid 0 = not visible in this PID namespace.
/// An error must not be taken for root, whose number is 0.
[[nodiscard]] Expected<ucred> peer_credentials(int socket);

/// How long a running daemon may take for an answer that it gives at once.
inline constexpr int kAnswerMs = 10'000;

/// The same as receive_packet(), but silence is an error that says so.
/// \param timeout_ms  -1 = wait for ever
[[nodiscard]] Expected<std::optional<Packet>> receive_answer(int socket,
                                                             int timeout_ms = kAnswerMs);

/// The error that a Refused packet carries.
Error error_of(const Refused& refused);

/// A Unix socket's address; Errc::bad_argument if the path is longer than the system takes.
[[nodiscard]] Expected<sockaddr_un> address_of(const std::string& path);

/// Connects to a daemon; Errc::not_running names the socket and what to do.
/// \param timeout_ms  -1 = wait for ever. A stopped daemon accepts nothing, and connecting blocks
/// once
///        the kernel's queue of connections is full
[[nodiscard]] Expected<UniqueFd> connect_to_daemon(const std::string& socket_path,
                                                   int timeout_ms = kAnswerMs);

/// What the keeper answers to a hello.
template <class Message>
struct Welcomed {
  Message message;
  std::vector<UniqueFd> fds;
};

/// Sends a hello with this process's pidfd and waits for a packet that is not a refusal.
[[nodiscard]] Expected<Packet> exchange_hello(int socket, MessageType type,
                                              std::span<const std::byte> payload, int timeout_ms);

/// Says hello and waits for the welcome; a refusal comes back as the error it carries.
template <class Hello>
[[nodiscard]] Expected<Welcomed<typename Hello::Welcome>> say_hello(int socket, const Hello& hello,
                                                                    int timeout_ms = kAnswerMs) {
  auto packet =
      exchange_hello(socket, Hello::kType, std::as_bytes(std::span(&hello, 1)), timeout_ms);
  if (!packet) return forward_error(packet);
  const auto message = packet->template as<typename Hello::Welcome>();
  if (!message)
    return failure(Errc::bad_format, "the daemon answered a hello with message " +
                                         std::to_string(std::uint32_t(packet->type())));
  return Welcomed<typename Hello::Welcome>{*message, std::move(packet->fds)};
}

/// Takes the pool's memory out of a welcome's descriptors; `objects` is the welcome's mask. What an
/// engine gets after it stays: the memory of a GPU's weights.
PoolFds take_pool_fds(std::uint32_t objects, std::vector<UniqueFd>& fds);

template <class Message>
PoolFds take_pool_fds(Welcomed<Message>& welcome) {
  return take_pool_fds(welcome.message.objects, welcome.fds);
}

}  // namespace kvhive
