#pragma once
// The messages that pass over the daemon's Unix socket: one struct per message, in the order in
// which a process sends or receives them. A message is copied byte for byte, so each struct is
// trivially copyable and has no pointer. It has no bool either: reading a bool whose byte is
// neither 0 nor 1 would be undefined behaviour. A number that another process sent is checked
// before it is used as an index or a size.
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
#include "config/domains/domain_share.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

inline constexpr std::uint32_t kProtocolMagic = 0x3170766bu;  // "kvp1"
inline constexpr std::uint32_t kProtocolVersion = 20;
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
  channel_taken = 13,
  requests_sealed = 14,
  pages_pinned = 15,
  order = 16,
  drained = 17,
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
  pin_pages = 45,
  engine_died = 46,
  channels_known = 47,
  done = 48,
  drain = 49,
  limits = 50,
  shares = 51,
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
// A keeper that is killed as it sends a welcome has a successor that may send it again: whoever was
// welcomed ignores a second welcome.
//
// A hello carries the sender's pidfd. The keeper answers with the welcome of the same role, or with
// Refused. `layout_hash` is computed by pool/pool_layout.hpp: if it is the same in two programs,
// they agree on every offset in the pool. `objects` is a mask: bit i is set if the message carries
// the descriptor of PoolObject i.

struct EngineWelcome {
  static constexpr MessageType kType = MessageType::engine_welcome;
  std::uint32_t engine = 0;  ///< the engine's number
  std::uint32_t slot = 0;    ///< the engine's process slot in the pool
  std::uint32_t life = 0;    ///< how many engines have had this slot (ipc/channel/slot_state.hpp)
  std::uint32_t pid = 0;  ///< the engine's pid in the keeper's PID namespace; 0 = not visible there
  std::uint32_t model = 0;  ///< which of the pool's models it computes: a ModelId
  /// After the descriptors that this mask names, the message carries those of the board
  /// (ipc/channel/board.hpp) and of the weights in GPU memory, if there are any.
  std::uint32_t objects = 0;
};
struct EngineHello {
  static constexpr MessageType kType = MessageType::engine_hello;
  using Welcome = EngineWelcome;
  std::uint32_t layout_hash = 0;
  std::uint32_t engine = kAnyEngine;  ///< the number that the engine asks for
  /// Of the KV that the engine computes. The keeper ignores padding and the groups' numbers: these
  /// are the pool's.
  ModelCache cache;
  DeviceKind device{};
  CpuKernels cpu_kernels{};  ///< as in PoolGeometry
  FixedText<64> gpu;         ///< DeviceFacts::uuid; empty on the CPU
  FixedText<512> model;      ///< the model's name
};

struct StewardWelcome {
  static constexpr MessageType kType = MessageType::steward_welcome;
  std::uint32_t objects = 0;
  PoolGeometry geometry;  ///< the steward formats the pool with this geometry
};
struct StewardHello {
  static constexpr MessageType kType = MessageType::steward_hello;
  using Welcome = StewardWelcome;
  std::uint32_t layout_hash = 0;
};

/// Carries four descriptors: the channel's requests for writing, its answers for reading
/// (ipc/channel/channel_layout.hpp), the bell that wakes the engine, and the client's end of the
/// bell that wakes the client (ipc/channel/doorbell.hpp).
struct ClientWelcome {
  static constexpr MessageType kType = MessageType::client_welcome;
  std::uint64_t channel = 0;
  std::uint64_t channel_bytes = 0;  ///< ClientHello::channel_bytes, rounded up to whole pages
};
struct ClientHello {
  static constexpr MessageType kType = MessageType::client_hello;
  using Welcome = ClientWelcome;
  std::uint64_t channel_bytes = 0;    ///< the size of channel that the client asks for
  std::uint32_t engine = kAnyEngine;  ///< the engine that must serve the channel
  /// The domain that the client asks for; empty = its user's. 36 bytes, so that there is no
  /// padding.
  FixedText<36> domain{};
  FixedText<72> model{};  ///< that is to serve the channel; empty = the daemon's first
};

/// client -> keeper: the client has mapped its requests for writing, and has sealed them: nobody
/// can punch holes into them any more. Engines are given the channel only then.
struct RequestsSealed {
  static constexpr MessageType kType = MessageType::requests_sealed;
};

struct InspectorWelcome {
  static constexpr MessageType kType = MessageType::inspector_welcome;
  std::uint32_t objects = 0;  ///< the descriptors are opened for reading only
  FixedText<512> model;       ///< the models' names
};
struct InspectorHello {
  static constexpr MessageType kType = MessageType::inspector_hello;
  using Welcome = InspectorWelcome;
  std::uint32_t layout_hash = 0;
  std::uint32_t wants_tokens = 0;  ///< 1 = also send the descriptor of the tokens object
};

/// keeper -> any process: why the keeper refuses it. The keeper then closes the connection.
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
/// keeper -> steward: release the blocks that this slot's dead process held.
struct Reap {
  static constexpr MessageType kType = MessageType::reap;
  std::uint32_t slot = 0;
  /// 1 = the dead process had lost its GPU context: also drop the cached blocks that no process
  /// holds (pool/care/reaper.hpp).
  std::uint32_t drops_unheld = 0;
  /// Of the order. The keeper may give an order twice, with another ticket; only the answer to the
  /// last one counts, because an order that is still to be done must not meet a new engine.
  std::uint64_t ticket = 0;
};
/// steward -> keeper: the slot is done and can be given to another process.
struct Reaped {
  static constexpr MessageType kType = MessageType::reaped;
  std::uint32_t slot = 0;
  std::uint32_t freed = 0;     ///< blocks that the process was filling; they are free now
  std::uint32_t released = 0;  ///< published blocks that it held; they stay in the cache
  std::uint32_t requests = 0;  ///< requests that it was serving or had waiting
  std::uint64_t ticket = 0;    ///< of the Reap it answers
};
/// What an inspector can have the steward do to the pool.
enum class Care : std::uint64_t {
  repair = 0,       ///< pool/care/repair.hpp
  reset_cache = 1,  ///< pool/care/cache_reset.hpp
};
/// keeper -> steward. Tail: which process has which slot, as JSON.
struct Repair {
  static constexpr MessageType kType = MessageType::repair;
  std::uint64_t ticket = 0;
  Care care = Care::repair;
};
/// steward -> keeper. Tail: what was done, as JSON.
struct Repaired {
  static constexpr MessageType kType = MessageType::repaired;
  std::uint64_t ticket = 0;  ///< of the Repair it answers
};

// -- engines --------------------------------------------------------------------------------------

/// engine -> keeper: the engine has signed in to the pool and takes requests.
struct Serving {
  static constexpr MessageType kType = MessageType::serving;
};
/// keeper -> engine: serve this channel. Carries four descriptors: the channel's requests for
/// reading, its answers for writing, the bell that wakes the engine, and the engine's end of the
/// bell that wakes the client.
struct ChannelOpen {
  static constexpr MessageType kType = MessageType::channel_open;
  std::uint64_t channel = 0;
  std::uint64_t channel_bytes = 0;
  DomainId domain{};  ///< the client's domain: the channel's requests belong to it
  DomainShare share;  ///< the domain's
  std::uint32_t user = 0;
  std::uint32_t is_stranger = 0;  ///< 1 = the user is a stranger: see ipc/channel/bell_ringers.hpp
  std::uint32_t is_shared = 0;    ///< 1 = other engines serve the channel, too
};
/// keeper -> engine: another engine has died, as the board says; take its requests.
struct EngineDied {
  static constexpr MessageType kType = MessageType::engine_died;
};
/// keeper -> engine: the channels that there are; close all others. A keeper that follows a killed
/// one sends it first of all. Tail: their numbers, as a JSON array.
struct ChannelsKnown {
  static constexpr MessageType kType = MessageType::channels_known;
};
/// keeper -> engine: the client is gone; end its requests.
struct ChannelClose {
  static constexpr MessageType kType = MessageType::channel_close;
  std::uint64_t channel = 0;
};
/// keeper -> engine: take no more requests; say so when those that you have are done.
struct Drain {
  static constexpr MessageType kType = MessageType::drain;
};
/// engine -> keeper: it has no request any more, and takes none.
struct Drained {
  static constexpr MessageType kType = MessageType::drained;
};
/// keeper -> its children: what an operator may change while they run (Options). A steward looks at
/// the level alone.
struct Limits {
  static constexpr MessageType kType = MessageType::limits;
  FixedText<8> log_level;
  std::uint32_t max_queued_tokens = 0;
};
/// keeper -> engine: what domains may have from now on. Tail: for each [domain, weight,
/// max_num_seqs, max_queued_tokens], as JSON.
struct Shares {
  static constexpr MessageType kType = MessageType::shares;
};
/// engine -> keeper: the engine has received this ChannelOpen. It answers each with this message or
/// with ChannelRefused, so that the keeper sees which engine is stopped.
struct ChannelTaken {
  static constexpr MessageType kType = MessageType::channel_taken;
  std::uint64_t channel = 0;
};
/// engine -> keeper: the engine cannot serve this channel, and why.
struct ChannelRefused {
  static constexpr MessageType kType = MessageType::channel_refused;
  std::uint64_t channel = 0;
  Errc error = Errc::none;
  FixedText<512> reason;
};

// -- inspectors -----------------------------------------------------------------------------------

/// any process -> keeper: asks for Status. The sender must be of the daemon's own user.
struct StatusRequest {
  static constexpr MessageType kType = MessageType::status_request;
  std::uint64_t ticket = 0;  ///< the asker's own; an answer can come twice
};
/// The keeper's answer to a StatusRequest. Carries one descriptor: the keeper's tables as JSON
/// (ipc/text_memory.hpp).
struct Status {
  static constexpr MessageType kType = MessageType::status;
  std::uint64_t ticket = 0;  ///< of the StatusRequest it answers
};
/// inspector -> keeper: asks for a repair of the pool, or other care. It may be done twice.
struct RepairRequest {
  static constexpr MessageType kType = MessageType::repair_request;
  std::uint64_t ticket = 0;  ///< the asker's own; an answer can come twice
  Care care = Care::repair;
};
/// The keeper's answer to a RepairRequest. Tail: what was done, as JSON.
struct RepairDone {
  static constexpr MessageType kType = MessageType::repair_done;
  std::uint64_t ticket = 0;  ///< of the RepairRequest it answers
};

/// inspector -> keeper: what an operator orders (tools/keeper/operator_orders.hpp). Tail: for
/// take_over the program's path, for reload the options that change, both as JSON.
struct Order {
  static constexpr MessageType kType = MessageType::order;
  enum class What : std::uint32_t { take_over, drain, restart, add, remove, reload };
  std::uint64_t ticket = 0;  ///< the asker's own; an answer can come twice
  What what{};
  std::uint32_t engine = kAnyEngine;
  std::uint32_t is_at_once = 0;  ///< 1 = the engine's requests are not waited for: others go on
                                 ///< with them
  std::uint32_t version = 0;     ///< take_over: the ledger's, as the other program has it
  FixedText<72> model{};         ///< add: that the engine serves; empty = the first
};
/// The keeper's answer to an Order that is done. Tail: what has become of it, as JSON.
struct Done {
  static constexpr MessageType kType = MessageType::done;
  std::uint64_t ticket = 0;
};

// -- steward and engines --------------------------------------------------------------------------

/// keeper -> its children: open the log file again.
struct ReopenLog {
  static constexpr MessageType kType = MessageType::reopen_log;
};

// -- the maker: the child that makes a GPU's memory; it has a socket pair of its own --------------

/// maker -> keeper: the memory is made. Carries the descriptors of the arena and of each model's
/// weights.
struct GpuMemory {
  static constexpr MessageType kType = MessageType::gpu_memory;
  std::uint32_t needs_its_maker = 0;  ///< 1 = the driver frees the memory when the maker ends
};
/// keeper -> maker: check your GPU context, and end if it is lost.
struct GpuContextCheck {
  static constexpr MessageType kType = MessageType::gpu_context_check;
};

// -- the pinner: a process that the keeper forks; it has a socket pair of its own -----------------

/// keeper -> pinner: pin the pages of a client's requests (tools/keeper/channels/page_pins.hpp).
/// Carries the requests, and then the pipes that are to hold the pages.
struct PinPages {
  static constexpr MessageType kType = MessageType::pin_pages;
  std::uint64_t bytes = 0;  ///< of the requests
};
/// pinner -> keeper: it is done, and has closed what it was given.
struct PagesPinned {
  static constexpr MessageType kType = MessageType::pages_pinned;
  std::int32_t error = 0;  ///< 0, or an errno
};

// -- sizes ----------------------------------------------------------------------------------------

/// All messages. A type that is not listed is malformed.
using ControlMessages =
    std::tuple<EngineHello, StewardHello, ClientHello, InspectorHello, Formatted, Reaped, Repaired,
               Serving, ChannelTaken, ChannelRefused, StatusRequest, RepairRequest, GpuMemory,
               RequestsSealed, PagesPinned, PinPages, Order, Drained, Done, Drain, Limits, Shares,
               EngineWelcome, StewardWelcome, ClientWelcome, InspectorWelcome, Refused, Reap,
               Repair, ChannelOpen, ChannelClose, EngineDied, ChannelsKnown, Status, RepairDone,
               GpuContextCheck, ReopenLog>;

/// Bytes that a message has in a packet: 0 for an empty struct.
template <class T>
inline constexpr std::size_t kPayloadBytes = std::is_empty_v<T> ? 0 : sizeof(T);

/// Bytes that a message of this type has in a packet; nothing if there is no such type.
constexpr std::optional<std::size_t> payload_bytes(MessageType type) {
  std::optional<std::size_t> bytes;
  const auto look = [&]<class... T>(const std::tuple<T...>*) {
    static_assert((std::is_trivially_copyable_v<T> && ...));
    ((T::kType == type ? void(bytes = kPayloadBytes<T>) : void()), ...);
  };
  look(static_cast<const ControlMessages*>(nullptr));
  return bytes;
}

// Processes of other users receive these structs. They have no padding, which could carry bytes
// from the keeper's stack.
static_assert(std::has_unique_object_representations_v<ClientWelcome>);
static_assert(std::has_unique_object_representations_v<Refused>);

}  // namespace kvhive
