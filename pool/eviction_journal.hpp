#pragma once
// What was thrown out lately, and by whom: for `kvhive pool why`, which would otherwise not know
// "evicted" from "never seen". A ring of plain records in shared memory. Nothing is decided by it:
// a record torn by a kill, lost or overwritten is a worse explanation and nothing else.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

enum class Departure : std::uint8_t {
  none = 0,
  evicted = 1,  ///< its block was needed for something else
  retired = 2,  ///< its block was damaged
  demoted = 3,  ///< evicted from the device tier; the host tier had room for it
  dropped = 4,  ///< who held it last had lost its device
};

/// A record as it is read back.
struct DepartureRecord {
  std::uint64_t hash_low = 0;    ///< of the block's name
  std::uint32_t name_check = 0;  ///< 14 bits of the other half; tells torn records, too
  Departure kind = Departure::none;
  std::uint32_t slot = 0;    ///< of the process that did it
  std::int64_t unix_ms = 0;  ///< by a coarse clock, for people only

  bool is_of(Hash128 name) const { return hash_low == name.low && name_check == check_of(name); }
  static std::uint32_t check_of(Hash128 name) { return std::uint32_t(name.high & 0x3fff); }
};

class EvictionJournal {
 public:
  explicit EvictionJournal(const PoolMemory& memory);

  /// Notes that the blocks' contents are gone; their descriptors still bear the names. One clock
  /// and one shared counter for all of them.
  void note(Departure kind, ProcessSlot who, std::span<const BlockId> blocks) const;

  /// What is still remembered, oldest first. Reads only.
  std::vector<DepartureRecord> read() const;
  /// False as long as nothing was overwritten: then what is not in it never happened.
  bool has_forgotten() const;

 private:
  BlockDescriptor* descriptors_;
  JournalRecord* records_;
  std::uint64_t mask_;
  std::atomic<std::uint64_t>* next_;
};

}  // namespace kvhive
