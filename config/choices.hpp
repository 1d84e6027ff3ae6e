#pragma once
// Options with a few named values: one enum each, with its table of names. Text becomes an enum
// once, when the options are parsed (config/option_table.hpp); nothing compares strings afterwards.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvhive {

/// An enum whose values count up from 0 and have names: `names_of(Enum)`, declared beside the enum,
/// returns the names in the order of the values.
template <class Enum>
concept NamedEnum = requires {
  names_of(Enum{}).size();
};

/// The name of a value, as it is written in flags, options files and JSON.
template <NamedEnum Enum>
constexpr std::string_view to_string(Enum value) {
  return names_of(value)[static_cast<std::size_t>(value)];
}

/// The value of that name; nothing if there is none.
template <NamedEnum Enum>
constexpr std::optional<Enum> value_named(std::string_view name) {
  const auto names = names_of(Enum{});
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

/// The name that takes the fewest changes of letters to become `wanted`, for error texts. Empty if
/// it is not alike: half of its letters or more would have to change.
std::string_view nearest_name(std::string_view wanted, std::span<const std::string_view> names);

/// One of two ways to the same bytes, chosen by measuring.
template <NamedEnum Way>
struct ChosenWay {
  Way way{};
  /// How fast each way is, in the order of the enum; 0 if nothing was measured.
  std::array<double, 2> rates{};
};

/// In which order the scheduler admits requests: by arrival, or by priority (lower first).
enum class SchedulingPolicy : std::uint8_t { fcfs, priority };
constexpr std::array<std::string_view, 2> names_of(SchedulingPolicy) {
  return {"fcfs", "priority"};
}

/// How a preempted sequence gets its KV back: computed again, or copied back from the host tier.
enum class PreemptionMode : std::uint8_t {
  recompute,  ///< its tokens are computed again; what is still cached of them is found
  swap,       ///< its blocks are copied to the host tier and back; without room there, recompute
  automatic,  ///< swap, where copying there and back takes no longer than computing
};
constexpr std::array<std::string_view, 3> names_of(PreemptionMode) {
  return {"recompute", "swap", "auto"};
}

/// What happens to the bytes of a block that is allocated for another domain than before.
enum class Scrub : std::uint8_t {
  on_domain_change,  ///< they are zeroed first
  never,             ///< they stay; kernels mask positions that they did not write
};
constexpr std::array<std::string_view, 2> names_of(Scrub) { return {"on_domain_change", "never"}; }

/// Which idle block loses its content first (docs/POLICIES.md).
enum class EvictionPolicy : std::uint8_t {
  lru,            ///< the least recently released one, as vLLM does
  second_chance,  ///< the same, but one that was hit since goes to the end of the order first
};
constexpr std::array<std::string_view, 2> names_of(EvictionPolicy) {
  return {"lru", "second-chance"};
}

/// What names of blocks are made with (hashing/block_hash.hpp). As vLLM names them.
enum class HashAlgorithm : std::uint8_t {
  xxhash,  ///< XXH3, 128 bits, with a secret
  sha256,  ///< SHA-256 with a secret, cut to 128 bits
};
constexpr std::array<std::string_view, 2> names_of(HashAlgorithm) { return {"xxhash", "sha256"}; }

/// How engines share the memory of a GPU.
enum class GpuMemorySharing : std::uint8_t {
  automatic,  ///< vmm if the driver can do it, else ipc
  vmm,        ///< by descriptors, which keep the memory alive
  ipc,        ///< by legacy CUDA IPC handles: the process that made the memory has to stay alive
};
constexpr std::array<std::string_view, 3> names_of(GpuMemorySharing) {
  return {"auto", "vmm", "ipc"};
}

}  // namespace kvhive
