#pragma once
// On which processors engines run: lists of the kernel's numbers, as /proc and taskset write them.
//
// Source: vLLM's VLLM_CPU_OMP_THREADS_BIND (auto, nobind, "0-31|32-63": a list for each process).

#include <cstdint>
#include <string>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// Numbers of processors, ascending, each once. Where it says where something runs: empty =
/// wherever the kernel puts it.
using ProcessorList = std::vector<std::uint32_t>;

/// "0-3,8"; at least one number. Errors say what would be right.
[[nodiscard]] Expected<ProcessorList> parse_processors(const std::string& text);
std::string to_string(const ProcessorList& processors);

/// What the operator asks for.
struct CpuBind {
  enum class Way : std::uint8_t {
    automatic,  ///< each engine on cores of its own, as far as there are enough (place_engines())
    none,
    listed,
  };
  Way way = Way::automatic;
  std::vector<ProcessorList> lists;  ///< if listed: by the engine's number

  friend bool operator==(const CpuBind&, const CpuBind&) = default;
};

/// "auto", "none", or lists with a | between them.
[[nodiscard]] Expected<CpuBind> parse_cpu_bind(const std::string& text);
std::string to_string(const CpuBind& bind);

/// Where an engine runs, and with how many compute threads.
struct EnginePlace {
  std::uint32_t threads = 1;
  ProcessorList processors;

  friend bool operator==(const EnginePlace&, const EnginePlace&) = default;
};

}  // namespace kvhive
