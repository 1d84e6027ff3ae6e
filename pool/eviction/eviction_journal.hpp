#pragma once
// The journal records which content was evicted lately and by which process, so that `kvhive pool
// why` can tell "evicted" from "never seen". It is a ring of plain records in shared memory. No
// decision depends on it: a record that is lost, overwritten, or half written because of a kill
// only makes an explanation less exact.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

enum class Departure : std::uint8_t {
  none = 0,
  evicted = 1,  ///< its block was taken for other content
  retired = 2,  ///< its block was corrupt
  demoted = 3,  ///< evicted from the device tier and moved to the host tier
  dropped = 4,  ///< the process that held it last had lost its device
};

/// One record, as read() returns it.
struct DepartureRecord {
  std::uint64_t hash_low = 0;  ///< of the block's name
  /// 14 bits of the name's other half; they also show half-written records.
  std::uint32_t name_check = 0;
  Departure kind = Departure::none;
  std::uint32_t slot = 0;    ///< slot of the process that evicted, retired, demoted or dropped it
  std::int64_t unix_ms = 0;  ///< from a coarse clock, only for display

  bool is_of(Hash128 name) const { return hash_low == name.low && name_check == check_of(name); }
  static std::uint32_t check_of(Hash128 name) { return std::uint32_t(name.high & 0x3fff); }
};

class EvictionJournal {
 public:
  explicit EvictionJournal(const PoolMemory& memory);

  /// Records that the contents of these blocks are gone; their descriptors still have the names.
  /// Reads the clock and advances the shared counter once for all of them.
  void note(Departure kind, ProcessSlot slot, std::span<const BlockId> blocks) const;

  /// The records that have not been overwritten, oldest first. Writes nothing.
  std::vector<DepartureRecord> read() const;
  /// True = records have been overwritten. If false, content without a record was never evicted.
  bool has_forgotten() const;

 private:
  BlockDescriptor* descriptors_;
  JournalRecord* records_;
  std::uint64_t mask_;
  std::atomic<std::uint64_t>* next_;
};

}  // namespace kvhive
