#include "pool/eviction/eviction_journal.hpp"

#include <ctime>

#include "base/prefetch.hpp"

namespace kvhive {
namespace {

// Bits of JournalRecord::what: 63 .. 22 Unix milliseconds, 21 .. 17 slot, 16 .. 14 kind, 13 .. 0
// name_check
constexpr int kTimeShift = 22, kSlotShift = 17, kKindShift = 14;

/// Unix milliseconds from a coarse clock: up to a few milliseconds late, but ten times as fast to
/// read as the exact clock.
std::uint64_t coarse_unix_ms() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return std::uint64_t(now.tv_sec) * 1000 + std::uint64_t(now.tv_nsec) / 1'000'000;
}

}  // namespace

EvictionJournal::EvictionJournal(const PoolMemory& memory)
    : descriptors_(memory.descriptors()),
      records_(memory.journal()),
      mask_(memory.layout().journal_slots - 1),
      next_(&memory.control().next_departure) {}

void EvictionJournal::note(Departure kind, ProcessSlot slot,
                           std::span<const BlockId> blocks) const {
  if (blocks.empty()) return;
  const std::uint64_t common = coarse_unix_ms() << kTimeShift |
                               std::uint64_t(slot.value & 31) << kSlotShift |
                               std::uint64_t(kind) << kKindShift;
  std::uint64_t place = next_->fetch_add(blocks.size(), relaxed);
  constexpr std::uint64_t kAhead = 32;  // records to prefetch: they are in no cache
  for (const BlockId block : blocks) {
    const Hash128 name = BlockView(descriptors_[block.value]).name();
    prefetch_to_write(&records_[(place + kAhead) & mask_]);
    JournalRecord& record = records_[place++ & mask_];
    record.hash_low.store(name.low, relaxed);
    record.what.store(common | DepartureRecord::check_of(name), relaxed);
  }
}

std::vector<DepartureRecord> EvictionJournal::read() const {
  std::vector<DepartureRecord> records;
  const std::uint64_t next = next_->load(std::memory_order_relaxed);
  for (std::uint64_t i = 0; i <= mask_; ++i) {
    const JournalRecord& record = records_[(next + i) & mask_];
    const std::uint64_t what = record.what.load(std::memory_order_relaxed);
    DepartureRecord read;
    read.kind = Departure(what >> kKindShift & 7);
    if (read.kind == Departure::none || read.kind > Departure::dropped) continue;
    read.hash_low = record.hash_low.load(std::memory_order_relaxed);
    read.name_check = std::uint32_t(what & 0x3fff);
    read.slot = std::uint32_t(what >> kSlotShift & 31);
    read.unix_ms = std::int64_t(what >> kTimeShift);
    records.push_back(read);
  }
  return records;
}

bool EvictionJournal::has_forgotten() const {
  return next_->load(std::memory_order_relaxed) > mask_ + 1;
}

}  // namespace kvhive
