#pragma once
// How long sampled blocks of the device tier keep a content, how long it was idle when it went, and
// how long it was between two uses. A block's life begins when it is allocated and ends when it is
// allocated again. It is used when a request that begins with its content is admitted.
//
// Of each `life_stride` neighbouring blocks one is measured, the one that a hash of pool and place
// picks: which blocks they are is chance, and every process knows it without a look at shared
// memory. No decision depends on the table. A process that is killed on the way loses a life, or a
// use of it, from the statistics.
//
// Source: vLLM's KVCacheMetricsCollector (v1/core/kv_cache_metrics.py), which draws anew at each
// allocation, and sees the lives of one engine's blocks only.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// One that has ended; all in nanoseconds.
struct BlockLife {
  std::uint64_t length = 0;
  std::uint64_t idle = 0;           ///< since its last use; as `length` if there was none
  std::vector<std::uint64_t> gaps;  ///< between its last four uses, in order
};

/// Times are the monotonic clock's, in nanoseconds: all processes of a machine share it.
class BlockLives {
 public:
  explicit BlockLives(const PoolMemory& memory);

  static std::uint64_t now();

  bool are_measured() const { return stride_ != 0; }
  bool is_measured(BlockId block) const;

  /// The block was allocated, so its life ends and another begins. Only for a measured block, and
  /// only by the process that has taken it, before another can.
  ///
  /// \return the life that has ended; none if nobody saw it begin
  std::optional<BlockLife> renew(BlockId block, std::uint64_t now) const;
  /// The blocks were found, and are used. The process holds them.
  void use(std::span<const BlockId> blocks) const;
  void use(BlockId block, std::uint64_t now) const;
  /// The lives up to now are not to be told of: their contents are found no more.
  void forget() const;

 private:
  LifeRecord& record(BlockId block) const { return records_[block.value / stride_]; }

  LifeRecord* records_;
  std::uint32_t device_blocks_;
  std::uint32_t stride_;
  std::uint64_t seed_;
};

}  // namespace kvhive
