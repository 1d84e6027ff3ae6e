#pragma once
// How long sampled blocks of the device tier keep a content, how long it was idle when it went, and
// how long it was between two uses. A block's life begins when it is allocated and ends when it is
// allocated again. It is used when a request that begins with its content is admitted.
//
// The tier is cut into stretches of `life_stride` blocks, the last of which may be shorter. In each
// one block is measured, drawn by a hash of pool and stretch; the null block never. So every
// process knows which they are, and a stretch as long as a prompt does not measure the same place
// of each prompt.
//
// No decision depends on the records. A process that is killed on the way loses a life, or a use of
// it, from the statistics.
//
// Source: vLLM's KVCacheMetricsCollector (v1/core/kv_cache_metrics.py), which draws anew at each
// allocation, and sees the lives of one engine's blocks only.

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// One that has ended; all in nanoseconds.
struct BlockLife {
  std::uint64_t length = 0;
  std::uint64_t idle = 0;  ///< since its last use; as `length` if there was none
  std::array<std::uint64_t, 3> all_gaps{};
  std::size_t gap_count = 0;

  /// Between its last four uses, in order.
  std::span<const std::uint64_t> gaps() const { return std::span(all_gaps).first(gap_count); }
};

/// Times are monotonic_ns(): processes in a time namespace of their own measure nonsense.
class BlockLives {
 public:
  explicit BlockLives(const PoolMemory& memory);

  bool are_measured() const { return stride_ != 0; }
  bool is_measured(BlockId block) const;

  /// The block was allocated: its life ends and another begins. Only for a measured block, and only
  /// by the process that has taken it, before another can.
  ///
  /// \return the life that has ended; none if nobody saw it begin
  std::optional<BlockLife> renew(BlockId block, std::uint64_t now) const;
  /// The blocks were found, and are used. The process holds them.
  void use(std::span<const BlockId> blocks) const;
  void use(BlockId block, std::uint64_t now) const;
  /// Ends all lives without telling of them: a reset has made their contents unreachable.
  void forget() const;

 private:
  LifeRecord& record(BlockId block) const { return records_[block.value / stride_]; }

  LifeRecord* records_;
  std::uint32_t device_blocks_;
  std::uint32_t stride_;
  std::uint64_t seed_;
};

}  // namespace kvhive
