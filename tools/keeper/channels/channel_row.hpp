#pragma once
// What a successor has to know of a channel (tools/keeper/succession/ledger.hpp). The descriptors
// are the table's; -1 = there is none.

#include <array>
#include <cstdint>
#include <type_traits>

namespace kvhive {

struct ChannelRow {
  static constexpr std::size_t kMostPins = 14;

  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::uint32_t wanted_engine = 0;
  std::uint32_t domain = 0;
  std::uint32_t user = 0;
  std::uint8_t is_limited = 0, is_sealed = 0, is_pinned = 0, model = 0;
  std::uint32_t engines = 0;  ///< the slots of those that were given the channel, a bit each
  std::uint32_t refused_by = 0;
  std::int32_t requests = -1, answers = -1, engine_bell = -1, client_bell = -1;
  /// Only until the client has them.
  std::int32_t clients_requests = -1, clients_bell = -1;
  std::array<std::int32_t, kMostPins> pins{};
};
static_assert(std::is_trivially_copyable_v<ChannelRow> &&
              std::has_unique_object_representations_v<ChannelRow>);

}  // namespace kvhive
