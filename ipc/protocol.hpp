#pragma once
// What is said over the daemon's Unix socket (SOCK_SEQPACKET): one fixed-layout message a packet,
// descriptors beside it. Read into private memory once, then checked; anything malformed closes the
// connection.

#include <sys/types.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

inline constexpr std::uint32_t kProtocolMagic = 0x3170766bu;  // "kvp1"
inline constexpr std::uint32_t kProtocolVersion = 4;
inline constexpr std::uint32_t kAnyEngine = ~0u;

enum class MessageType : std::uint32_t {
  // to the keeper
  hello = 1,   ///< first message of everybody; + the sender's pidfd
  reaped = 2,  ///< steward: a slot is swept
  status_request = 3,
  formatted = 4,        ///< steward: the pool is there, engines may come
  channel_refused = 5,  ///< engine: it cannot serve this channel; why
  serving = 6,          ///< engine: it has signed in to the pool and takes requests
  repair_request = 7,   ///< inspector: have the pool repaired
  repaired = 8,         ///< steward: done; what was mended as JSON
  /// who makes a GPU's memory: done; + the arena, the weights. To it: is it there still?
  gpu_memory = 9,
  // from the keeper
  welcome = 16,  ///< + the descriptors the role is entitled to
  refused = 17,  ///< why; the connection ends
  reap = 18,     ///< steward: sweep this slot
  /// engine: serve this channel; + its memory, the engine's and the client's doorbell
  channel_open = 19,
  channel_close = 20,
  status = 21,       ///< JSON
  repair = 22,       ///< steward: repair the pool; who has which slot as JSON
  repair_done = 23,  ///< inspector: what was mended as JSON
};

enum class Role : std::uint32_t { engine = 1, steward = 2, client = 3, inspector = 4 };

struct Message {
  std::uint32_t magic = kProtocolMagic;
  std::uint32_t version = kProtocolVersion;
  MessageType type = MessageType::hello;
  Role role = Role::client;       ///< hello
  std::uint32_t layout_hash = 0;  ///< hello of all but a client: of pool/pool_layout.hpp
  /// hello: the engine's own number, or the one a client wants; welcome: granted.
  std::uint32_t engine = kAnyEngine;
  std::uint32_t slot = 0;           ///< welcome to an engine, reap, reaped
  std::uint32_t privileged = 0;     ///< hello of an inspector: tokens, too
  std::uint64_t fingerprint = 0;    ///< hello of an engine
  std::uint64_t channel = 0;        ///< channel_*, welcome to a client
  std::uint64_t ticket = 0;         ///< repair, repaired: which request
  std::uint64_t channel_bytes = 0;  ///< hello of a client: wish; welcome, channel_open: granted
  std::uint32_t drops_unheld = 0;   ///< reap: 1 = it has lost its device (pool/reaper.hpp)
  std::uint32_t freed = 0;          ///< reaped: blocks
  std::uint32_t released = 0;
  DomainId domain{};          ///< channel_open: whose requests come through it
  std::uint32_t objects = 0;  ///< welcome: mask of the pool objects among the descriptors
  std::uint32_t pid = 0;      ///< welcome to an engine: its number in our PID namespace; 0 = none
  Errc error = Errc::none;    ///< refused, channel_refused
  std::uint32_t needs_its_maker = 0;  ///< gpu_memory: 1 = it goes with its sender
  PoolGeometry geometry;              ///< hello of an engine: what it computes with; welcome
  std::array<char, 64> gpu{};         ///< hello of an engine on a GPU: which (DeviceFacts::uuid)
  /// hello of an engine, welcome to an inspector: the model's name; refused and channel_refused:
  /// why, in one line; welcome to a steward: the socket's path.
  std::array<char, 512> text{};

  void set_text(const std::string& line);
  std::string get_text() const;
  void set_gpu(const std::string& uuid);
  std::string get_gpu() const;
};
static_assert(std::is_trivially_copyable_v<Message>);

/// A message and what came with it. What is said as JSON is in `tail`, after the fixed part.
struct Packet {
  Message message;
  std::vector<UniqueFd> fds;
  std::string tail;
  /// Descriptors were sent that we could not be given: most likely we have as many open as we may.
  /// The message itself is whole.
  bool lost_fds = false;
};

/// Sends one packet.
Expected<void> send_packet(int socket, const Message& message, const std::vector<int>& fds = {},
                           const std::string& tail = {});

/// The next packet. Nothing = the peer has closed. An error = malformed, or the system said no.
Expected<std::optional<Packet>> receive_packet(int socket);

/// How long a living daemon may take for an answer that it gives at once.
inline constexpr int kAnswerMs = 10'000;

/// The same; silence is an error that says so. \param timeout_ms  -1 = wait for ever
Expected<std::optional<Packet>> receive_answer(int socket, int timeout_ms = kAnswerMs);

/// A Unix socket's address; Errc::bad_argument if the path is longer than the system takes.
Expected<sockaddr_un> address_of(const std::string& path);

/// Connects to a daemon; Errc::not_running names the socket and what to do.
Expected<UniqueFd> connect_to_daemon(const std::string& socket_path);

/// Says hello and waits for the welcome; a refusal comes back as the error it carries.
Expected<Packet> say_hello(int socket, Message hello, int timeout_ms = kAnswerMs);

/// The pool objects that came with a welcome: bit i of `objects` = PoolObject i is among
/// them, in that order. What an engine gets after them is left: a GPU's copy of the weights.
PoolFds take_pool_fds(Packet& packet);

}  // namespace kvhive
