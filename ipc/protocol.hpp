#pragma once
// How control messages travel over the daemon's Unix socket (SOCK_SEQPACKET). A packet is a header,
// one message (the payload, ipc/control_messages.hpp), and an optional tail of JSON. File
// descriptors are sent with it (SCM_RIGHTS). The receiver copies a packet into private memory once
// and then checks it; if it is malformed, the receiver closes the connection.

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/expected.hpp"
#include "ipc/control_messages.hpp"

namespace kvhive {

/// The first bytes of every packet, in every version of the protocol.
struct PacketHeader {
  std::uint32_t magic = kProtocolMagic;
  std::uint32_t version = kProtocolVersion;
  MessageType type{};
  std::uint32_t payload_bytes = 0;  ///< the tail begins after these bytes
};

/// The most descriptors in a packet (those of a GPU's memory), and the most bytes after its header.
inline constexpr std::size_t kMostFds = 1 + kMostModels;
inline constexpr std::size_t kMostTail = std::size_t{256} << 10;
inline constexpr std::size_t kMostPayload = []<class... T>(const std::tuple<T...>*) {
  return std::max({kPayloadBytes<T>...});
}(static_cast<const ControlMessages*>(nullptr));

/// Where a packet is received: a plain struct, which can lie in memory that outlives the receiver
/// (tools/keeper/succession/ledger.hpp). The system call that takes a packet fills it, so it tells
/// another process that a packet was taken, and which.
struct PacketBuffer {
  /// Sets it up for a packet of so many bytes; who receives it without being killed learns its size
  /// anyway. From now on none is taken.
  void expect(std::size_t packet_bytes);
  bool was_taken() const { return message.msg_flags != kNothingTaken; }
  /// No descriptor of this packet is anybody's yet: they are the numbers in `control`.
  std::vector<int> descriptors() const;

  static constexpr int kNothingTaken = -1;
  std::size_t bytes = 0;  ///< of the packet, header included
  PacketHeader header;
  std::array<char, kMostPayload + kMostTail> body;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control;
  std::array<iovec, 2> parts{};
  msghdr message = [] {
    msghdr nothing{};
    nothing.msg_flags = kNothingTaken;
    return nothing;
  }();
};

/// One packet as it was received. Its type is known, and its payload has that type's size.
class Packet {
 public:
  MessageType type() const { return type_; }
  bool is(MessageType type) const { return type_ == type; }

  /// The message, if it is of type T.
  template <class T>
  std::optional<T> as() const {
    if (type_ != T::kType) return std::nullopt;
    T message;
    if constexpr (kPayloadBytes<T> != 0) std::memcpy(&message, body_.data(), sizeof(T));
    return message;
  }

  std::string_view tail() const { return std::string_view(body_).substr(payload_bytes_); }

  std::vector<UniqueFd> fds;
  /// True = the kernel could not pass on all the descriptors that were sent: most likely this
  /// process has as many open as its limit allows. The message itself is complete.
  bool lost_fds = false;

 private:
  friend Expected<std::optional<Packet>> packet_in(const PacketBuffer& buffer);
  MessageType type_{};
  std::size_t payload_bytes_ = 0;
  std::string body_;  ///< payload, then tail
};

/// Sends one packet. Errors: peer_died = the peer has closed the connection; os_error = the
/// system's error, for example that the peer's queue is full.
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
/// the peer speaks another version; bad_format = malformed; os_error = the system's error.
[[nodiscard]] Expected<std::optional<Packet>> receive_packet(int socket);

/// The same in steps, for a packet that another process may have to finish: asks for its size,
/// receives it into `buffer`, which expects that size, and makes a Packet of it, which owns the
/// descriptors.
[[nodiscard]] std::size_t next_packet_bytes(int socket);
/// \return  whether a packet was taken; false = the peer has closed the connection
[[nodiscard]] Expected<bool> receive_into(int socket, PacketBuffer& buffer);
[[nodiscard]] Expected<std::optional<Packet>> packet_in(const PacketBuffer& buffer);

/// What the next packet on a socket is, without taking it: a process that takes a packet also gets
/// its descriptors, and closing one can take as long as its sender likes.
enum class NextPacket : std::uint8_t {
  none,              ///< nothing has come
  plain,             ///< a packet without descriptors, or the end of the connection
  with_descriptors,  ///< take it only from a process that is trusted
};
NextPacket look_at_next_packet(int socket);

/// Has the kernel refuse descriptors that are sent to this socket, and to those accepted from it.
/// Does nothing before Linux 6.16.
void refuse_descriptors(int socket);

/// The process at the other end, as the kernel knows it. Its pid is 0 if it is not visible in this
/// PID namespace. The caller must not take an error for uid 0, which is root's.
[[nodiscard]] Expected<ucred> peer_credentials(int socket);

/// How long to wait for an answer, in ms. A running daemon answers at once; a stopped one never.
inline constexpr int kAnswerMs = 10'000;

/// The same as receive_packet(), but waits at most `timeout_ms`; then the error is not_running.
/// \param timeout_ms  -1 = wait for ever
[[nodiscard]] Expected<std::optional<Packet>> receive_answer(int socket,
                                                             int timeout_ms = kAnswerMs);

/// The error that a Refused packet carries.
Error error_of(const Refused& refused);

/// A Unix socket's address; Errc::bad_argument if the path is longer than the system takes.
[[nodiscard]] Expected<sockaddr_un> address_of(const std::string& path);

/// Connects to a daemon. Errors: not_running, with the socket's path and what the user can do.
///
/// \param timeout_ms  -1 = wait for ever. A stopped daemon accepts nothing, and connecting blocks
///                    once the kernel's queue of connections is full
[[nodiscard]] Expected<UniqueFd> connect_to_daemon(const std::string& socket_path,
                                                   int timeout_ms = kAnswerMs);

/// The keeper's answer to a hello: the welcome and the descriptors that came with it.
template <class Message>
struct Welcomed {
  Message message;
  std::vector<UniqueFd> fds;
};

/// Sends a hello, with this process's pidfd where the kernel does not tell it to the daemon (before
/// Linux 6.5), and returns the answer. If the answer is Refused, returns the error that it carries.
[[nodiscard]] Expected<Packet> exchange_hello(int socket, MessageType type,
                                              std::span<const std::byte> payload, int timeout_ms);

/// Sends a hello and waits for the welcome. If the keeper refuses, returns the error that the
/// Refused message carries.
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

/// Moves the descriptors of the pool's memory objects out of `fds`, which came with a welcome;
/// `objects` is the welcome's mask. What follows them stays in `fds`: for an engine on a GPU, the
/// descriptor of the weights.
PoolFds take_pool_fds(std::uint32_t objects, std::vector<UniqueFd>& fds);

template <class Message>
PoolFds take_pool_fds(Welcomed<Message>& welcome) {
  return take_pool_fds(welcome.message.objects, welcome.fds);
}

}  // namespace kvhive
