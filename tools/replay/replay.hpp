#pragma once
// Drives a real shared pool with recorded traffic, as vLLM's block manager would: the same
// decisions, one by one.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "config/choices.hpp"
#include "tools/replay/trace.hpp"

namespace kvhive {

/// How requests overlap: one at a time, N in flight (the oldest ends when another comes), or N in
/// flight that each grow by their output before they end.
struct ReplayMode {
  std::uint32_t in_flight = 1;
  enum class Decode : std::uint8_t { no, yes } decode = Decode::no;

  [[nodiscard]] static Expected<ReplayMode> parse(
      const std::string& text);  ///< "seq", "fifo32", "dec16"
};

struct ReplayOptions {
  std::uint32_t block_tokens = 512;  ///< tokens that one content id of the trace stands for
  std::uint32_t blocks = 0;          ///< usable blocks of the pool (the null block comes on top)
  ReplayMode mode;
  EvictionPolicy policy = EvictionPolicy::lru;
  /// Not 0: make block_tokens real tokens of each content id and cut them into blocks of that many
  /// tokens, hashed and compared as an engine would.
  std::uint32_t expand_to = 0;
  /// More than 1: so many real processes over one pool, which get the requests in turn. Their
  /// decisions then depend on which is faster, so there are no digests.
  std::uint32_t processes = 1;
};

struct ReplayFigures {
  std::uint64_t requests = 0, rejected = 0, full_blocks = 0, hit_blocks = 0, evictions = 0,
                truncated = 0;
  double seconds = 0;  ///< processor time in pool operations and hashing, of all processes
};

struct ReplayResult : ReplayFigures {
  std::string hits_sha256, block_ids_sha256, free_queue_sha256;  ///< empty with several processes
  std::uint32_t processes = 1;
  /// Of all processes together: two that do as much each as one alone halve it.
  double ns_per_block() const {
    return full_blocks == 0 ? 0 : seconds * 1e9 / static_cast<double>(full_blocks) / processes;
  }
};

[[nodiscard]] Expected<ReplayResult> replay(const std::vector<TraceRequest>& trace,
                                            const ReplayOptions& options,
                                            const std::function<void(std::size_t done)>& progress);

}  // namespace kvhive
