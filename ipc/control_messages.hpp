#pragma once
// The messages that pass over the daemon's Unix socket: one struct per message, in the order in
// which a process meets them. Each is copied byte for byte, so it is trivially copyable, has no
// pointer and no bool (a byte that is neither 0 nor 1 would be undefined behaviour to read), and a
// number that another process sent is checked before it is used as an index or a size.
//
// Bump kProtocolVersion whenever a struct here changes.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

inline constexpr std::uint32_t kProtocolMagic = 0x3170766bu;  // "kvp1"
inline constexpr std::uint32_t kProtocolVersion = 6;
inline constexpr std::uint32_t kAnyEngine = ~0u;

enum class MessageType : std::uint32_t {
  // to the keeper
  engine_hello = 1,
  steward_hello = 2,
  client_hello = 3,
  inspector_hello = 4,
  formatted = 5,
  reaped = 6,
  repaired = 7,
  serving = 8,
  channel_refused = 9,
  status_request = 10,
  repair_request = 11,
  gpu_memory = 12,
  // from the keeper
  engine_welcome = 32,
  steward_welcome = 33,
  client_welcome = 34,
  inspector_welcome = 35,
  refused = 36,
  reap = 37,
  repair = 38,
  channel_open = 39,
  channel_close = 40,
  status = 41,
  repair_done = 42,
  gpu_context_check = 43,
  reopen_log = 44,
};

/// A text of at most N - 1 bytes inside a message; a longer one is cut.
template <std::size_t N>
class FixedText {
 public:
  FixedText() = default;
  explicit FixedText(std::string_view text) {
    std::memcpy(bytes_.data(), text.data(), std::min(text.size(), N - 1));
  }
  /// Safe on bytes from another process: ends at the first 0, or at the end of the array.
  std::string str() const { return {bytes_.data(), strnlen(bytes_.data(), N)}; }

 private:
  std::array<char, N> bytes_{};
};

// -- hello and welcome: the first message of every process, and its answer ------------------------
// A hello carries the sender's pidfd. The keeper answers with the welcome of the same role, or with
// Refused. `layout_hash` is that of pool/pool_layout.hpp: the two programs agree on every offset.
// `objects` is a mask: bit i is set if the memory of PoolObject i is among the descriptors.

struct EngineWelcome {
  static constexpr MessageType kType = MessageType::engine_welcome;
  std::uint32_t engine = 0;  ///< its number
  std::uint32_t slot = 0;    ///< its process slot in the pool
  std::uint32_t pid = 0;     ///< its pid in the keeper's PID namespace; 0 = not visible there
  /// Carries the pool's memory and, after that, the memory of a GPU's weights if there is one.
  std::uint32_t objects = 0;
};
struct EngineHello {
  static constexpr MessageType kType = MessageType::engine_hello;
  using Welcome = EngineWelcome;
  std::uint32_t layout_hash = 0;
  std::uint32_t engine = kAnyEngine;  ///< the number it wants
  PoolGeometry geometry;              ///< what it computes with; numbers of blocks are ignored
  FixedText<64> gpu;                  ///< DeviceFacts::uuid; empty on the CPU
  FixedText<512> model;               ///< the model's name
};

struct StewardWelcome {
  static constexpr MessageType kType = MessageType::steward_welcome;
  std::uint32_t objects = 0;
  PoolGeometry geometry;  ///< to format the pool with
};
struct StewardHello {
  static constexpr MessageType kType = MessageType::steward_hello;
  using Welcome = StewardWelcome;
  std::uint32_t layout_hash = 0;
};

/// Carries the channel's memory, the engine's end of the doorbell and the client's.
struct ClientWelcome {
  static constexpr MessageType kType = MessageType::client_welcome;
  std::uint64_t channel = 0;
  std::uint64_t channel_bytes = 0;  ///< granted: the wish, rounded up to whole pages
};
struct ClientHello {
  static constexpr MessageType kType = MessageType::client_hello;
  using Welcome = ClientWelcome;
  std::uint64_t channel_bytes = 0;    ///< the size it wants
  std::uint32_t engine = kAnyEngine;  ///< the engine that shall serve it
};

struct InspectorWelcome {
  static constexpr MessageType kType = MessageType::inspector_welcome;
  std::uint32_t objects = 0;  ///< opened for reading only
  FixedText<512> model;       ///< the model's name
};
struct InspectorHello {
  static constexpr MessageType kType = MessageType::inspector_hello;
  using Welcome = InspectorWelcome;
  std::uint32_t layout_hash = 0;
  std::uint32_t wants_tokens = 0;  ///< 1 = the memory of token ids, too
};

/// keeper -> any process: why it is refused. The keeper then closes the connection.
struct Refused {
  static constexpr MessageType kType = MessageType::refused;
  Errc error = Errc::none;
  FixedText<512> reason;  ///< one line
};

// -- steward --------------------------------------------------------------------------------------

/// steward -> keeper: the pool is formatted, engines may start.
struct Formatted {
  static constexpr MessageType kType = MessageType::formatted;
};
/// keeper -> steward: return what this slot's dead process held.
struct Reap {
  static constexpr MessageType kType = MessageType::reap;
  std::uint32_t slot = 0;
  /// 1 = its GPU context was lost: drop the cached blocks that no process holds (pool/care/reaper).
  std::uint32_t drops_unheld = 0;
};
struct Reaped {
  static constexpr MessageType kType = MessageType::reaped;
  std::uint32_t slot = 0;
  std::uint32_t freed = 0;     ///< blocks that nobody holds and that had no content
  std::uint32_t released = 0;  ///< blocks that stay in the cache
  std::uint32_t requests = 0;  ///< that the process was serving or had waiting
};
/// keeper -> steward: repair the pool. Tail: which process has which slot, as JSON.
struct Repair {
  static constexpr MessageType kType = MessageType::repair;
  std::uint64_t ticket = 0;
};
/// steward -> keeper. Tail: what was repaired, as JSON.
struct Repaired {
  static constexpr MessageType kType = MessageType::repaired;
  std::uint64_t ticket = 0;  ///< of the Repair it answers
};

// -- engines --------------------------------------------------------------------------------------

/// engine -> keeper: it has signed in to the pool and takes requests.
struct Serving {
  static constexpr MessageType kType = MessageType::serving;
};
/// keeper -> engine: serve this channel. Carries the same descriptors as ClientWelcome.
struct ChannelOpen {
  static constexpr MessageType kType = MessageType::channel_open;
  std::uint64_t channel = 0;
  std::uint64_t channel_bytes = 0;
  DomainId domain{};  ///< whose requests come through it
};
struct ChannelClose {
  static constexpr MessageType kType = MessageType::channel_close;
  std::uint64_t channel = 0;
};
/// engine -> keeper: it cannot serve this channel, and why.
struct ChannelRefused {
  static constexpr MessageType kType = MessageType::channel_refused;
  std::uint64_t channel = 0;
  Errc error = Errc::none;
  FixedText<512> reason;
};

// -- inspectors -----------------------------------------------------------------------------------

struct StatusRequest {
  static constexpr MessageType kType = MessageType::status_request;
};
/// Tail: the keeper's tables, as JSON.
struct Status {
  static constexpr MessageType kType = MessageType::status;
};
struct RepairRequest {
  static constexpr MessageType kType = MessageType::repair_request;
};
/// Tail: what was repaired, as JSON.
struct RepairDone {
  static constexpr MessageType kType = MessageType::repair_done;
};

// -- steward and engines --------------------------------------------------------------------------

/// keeper -> its children: open the log file again.
struct ReopenLog {
  static constexpr MessageType kType = MessageType::reopen_log;
};

// -- the process that makes a GPU's memory, over a socket pair of its own -------------------------

/// maker -> keeper: the memory is made. Carries the arena and the weights.
struct GpuMemory {
  static constexpr MessageType kType = MessageType::gpu_memory;
  std::uint32_t needs_its_maker = 0;  ///< 1 = the memory goes when its maker ends
};
/// keeper -> maker: end if your GPU context is lost.
struct GpuContextCheck {
  static constexpr MessageType kType = MessageType::gpu_context_check;
};

// -- sizes ----------------------------------------------------------------------------------------

/// All messages. A type that is not listed is malformed.
using ControlMessages =
    std::tuple<EngineHello, StewardHello, ClientHello, InspectorHello, Formatted, Reaped, Repaired,
               Serving, ChannelRefused, StatusRequest, RepairRequest, GpuMemory, EngineWelcome,
               StewardWelcome, ClientWelcome, InspectorWelcome, Refused, Reap, Repair, ChannelOpen,
               ChannelClose, Status, RepairDone, GpuContextCheck, ReopenLog>;

/// Bytes that a message has in a packet: an empty struct has none.
template <class T>
inline constexpr std::size_t kPayloadBytes = std::is_empty_v<T> ? 0 : sizeof(T);

/// Of a message of this type; nothing = there is no such message.
constexpr std::optional<std::size_t> payload_bytes(MessageType type) {
  std::optional<std::size_t> bytes;
  const auto look = [&]<class... T>(const std::tuple<T...>*) {
    static_assert((std::is_trivially_copyable_v<T> && ...));
    ((T::kType == type ? void(bytes = kPayloadBytes<T>) : void()), ...);
  };
  look(static_cast<const ControlMessages*>(nullptr));
  return bytes;
}

// Other users get these: no byte between members that could carry what the keeper's stack held.
static_assert(std::has_unique_object_representations_v<ClientWelcome>);
static_assert(std::has_unique_object_representations_v<Refused>);

}  // namespace kvhive
