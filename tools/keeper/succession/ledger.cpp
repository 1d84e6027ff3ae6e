#include "tools/keeper/succession/ledger.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <tuple>

#include "base/check.hpp"
#include "base/memory/memory_object.hpp"
#include "base/round_up.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kInboxAt = kPage;
static_assert(sizeof(LedgerHead) <= kInboxAt);
constexpr std::size_t kTextAt = round_up(kInboxAt + sizeof(Inbox), kPage);
constexpr std::uint32_t kSecondPlace = 1u << 31;
constexpr std::size_t kCellsAt =
    kTextAt + 2 * std::tuple_size_v<decltype(LedgerHead::texts)> * LedgerMemory::kMostText;
constexpr std::size_t kCellBytes = 512;
constexpr std::uint32_t kFirstCells = 512, kMostCells = 1u << 18;
constexpr std::size_t kMostBytesOfAll = kCellsAt + kMostCells * kCellBytes;

/// For rows that an event adds.
constexpr std::size_t kSpareCells = 128;

/// A cell that no row is in.
constexpr std::uint64_t kUnused = 0;

}  // namespace

/// One row, or the note that a row is gone (size 0).
struct LedgerMemory::Cell {
  std::atomic<std::uint64_t> generation;  ///< the commit that makes it valid; kUnused = none
  Ledger::Kind kind;
  std::uint32_t size;
  std::uint64_t key;
  std::byte bytes[Ledger::kMostBytes];
};

bool Inbox::was_left_undone(const Ledger& ledger) const {
  return packet.was_taken() && handled_by >= ledger.next();
}

// -- memory ---------------------------------------------------------------------------------------

/// The mapping is as large as the ledger may get; the file grows.
Expected<LedgerMemory> LedgerMemory::map(UniqueFd fd) {
  void* const data = mmap(nullptr, kMostBytesOfAll, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) return os_failure("map the ledger");
  madvise(data, kMostBytesOfAll, MADV_DONTDUMP);
  return LedgerMemory(std::move(fd), static_cast<std::byte*>(data));
}

const std::size_t LedgerMemory::kFirstBytes = kCellsAt + kFirstCells * kCellBytes;

Expected<LedgerMemory> LedgerMemory::create() {
  auto fd = open_memory("kvhived-ledger");
  if (!fd) return forward_error(fd);
  if (fallocate(fd->get(), 0, 0, static_cast<off_t>(kFirstBytes)) != 0)
    return os_failure("allocate the ledger");
  auto memory = map(std::move(*fd));
  if (!memory) return memory;
  static_assert(sizeof(Cell) == kCellBytes);
  auto* const head = new (memory->data_) LedgerHead;
  head->cell_bytes = kCellBytes;
  head->cells = kFirstCells;
  new (&memory->inbox()) Inbox;
  return memory;
}

Expected<LedgerMemory> LedgerMemory::open(UniqueFd fd) {
  auto memory = map(std::move(fd));
  if (!memory) return memory;
  const LedgerHead& head = memory->head();
  if (head.magic == LedgerHead::kMagic && head.version == kLedgerVersion &&
      head.cell_bytes == kCellBytes)
    return memory;
  return failure(Errc::layout_mismatch, "the daemon's ledger is of version " +
                                            std::to_string(head.version) + ", this program's is " +
                                            std::to_string(kLedgerVersion));
}

LedgerMemory::~LedgerMemory() {
  if (data_ != nullptr) munmap(data_, kMostBytesOfAll);
}

Inbox& LedgerMemory::inbox() const { return *reinterpret_cast<Inbox*>(data_ + kInboxAt); }

LedgerMemory::Cell& LedgerMemory::cell(std::uint32_t number) const {
  return *reinterpret_cast<Cell*>(data_ + kCellsAt + number * kCellBytes);
}

std::byte* LedgerMemory::place_of(Text which, bool is_second) const {
  return data_ + kTextAt + (2 * std::size_t(which) + (is_second ? 1 : 0)) * kMostText;
}

void LedgerMemory::write_text(Text which, std::string_view text) const {
  KV_CHECK(text.size() <= kMostText, text.size());
  auto& state = head().texts[std::size_t(which)];
  const std::uint32_t place = ~state.load() & kSecondPlace;
  std::memcpy(place_of(which, place != 0), text.data(), text.size());
  state.store(static_cast<std::uint32_t>(text.size()) | place, std::memory_order_release);
}

std::string LedgerMemory::text(Text which) const {
  const std::uint32_t state = head().texts[std::size_t(which)];
  return {reinterpret_cast<const char*>(place_of(which, (state & kSecondPlace) != 0)),
          state & ~kSecondPlace};
}

/// Doubles the number of cells.
Expected<void> LedgerMemory::grow() const {
  const std::uint32_t more = head().cells;
  if (more * 2 > kMostCells)
    return failure(Errc::too_many_processes, "the daemon's ledger is full; close connections");
  if (fallocate(fd(), 0, static_cast<off_t>(kCellsAt + more * kCellBytes),
                static_cast<off_t>(more * kCellBytes)) != 0)
    return os_failure("allocate the ledger");
  head().cells.store(more * 2, std::memory_order_release);
  return {};
}

// -- rows -----------------------------------------------------------------------------------------

Ledger::Ledger(const LedgerMemory& memory) : memory_(memory) {
  const std::uint64_t committed = memory_.head().generation.load(std::memory_order_acquire);
  next_ = committed + 1;
  std::vector<std::uint32_t> old, gone;
  for (std::uint32_t number = 0; number < memory_.head().cells; ++number) {
    const LedgerMemory::Cell& cell = memory_.cell(number);
    const std::uint64_t generation = cell.generation.load(std::memory_order_acquire);
    if (generation == kUnused || generation > committed) {
      free_cell(number);
      continue;
    }
    const auto [place, is_new] = index_.try_emplace({cell.kind, cell.key}, number);
    if (is_new) continue;
    const bool is_newer = generation > memory_.cell(place->second).generation;
    old.push_back(is_newer ? std::exchange(place->second, number) : number);
  }
  for (const std::uint32_t number : old) free_cell(number);
  // Only then: a row whose end was noted must not come back.
  std::erase_if(index_, [&](const auto& entry) {
    const bool is_gone = memory_.cell(entry.second).size == 0;
    if (is_gone) gone.push_back(entry.second);
    return is_gone;
  });
  for (const std::uint32_t number : gone) free_cell(number);
}

const std::byte* Ledger::bytes_of(std::uint32_t cell) const { return memory_.cell(cell).bytes; }

void Ledger::write(Kind kind, std::uint64_t key, std::span<const std::byte> bytes) {
  const Place place{kind, key};
  if (const auto found = index_.find(place); found != index_.end())
    if (std::memcmp(bytes_of(found->second), bytes.data(), bytes.size()) == 0) return;
  const std::uint32_t number = take_cell();
  LedgerMemory::Cell& cell = memory_.cell(number);
  cell.kind = kind;
  cell.key = key;
  cell.size = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(cell.bytes, bytes.data(), bytes.size());
  cell.generation.store(next_, std::memory_order_release);
  replace(place, number);
  if (const auto gone = tombstones_.extract(place)) free_cell(gone.mapped());
}

void Ledger::erase(Kind kind, std::uint64_t key) {
  const Place place{kind, key};
  const auto found = index_.find(place);
  if (found == index_.end()) return;
  const std::uint32_t number = take_cell();
  LedgerMemory::Cell& cell = memory_.cell(number);
  cell.kind = kind;
  cell.key = key;
  cell.size = 0;
  cell.generation.store(next_, std::memory_order_release);
  replace(place, number);
  index_.erase(place);
  tombstones_.emplace(place, number);
}

/// From now on the row is in this cell. The old cell counts until the commit.
void Ledger::replace(const Place& place, std::uint32_t number) {
  const auto [entry, is_new] = index_.try_emplace(place, number);
  if (is_new) return;
  const std::uint32_t old = std::exchange(entry->second, number);
  // Two cells of one place and one commit would leave it open which counts.
  if (memory_.cell(old).generation == next_)
    free_cell(old);
  else
    replaced_.push_back(old);
}

void Ledger::commit() {
  memory_.head().generation.store(next_++, std::memory_order_release);
  for (const std::uint32_t number : std::exchange(replaced_, {})) free_cell(number);
  for (const auto& [place, number] : std::exchange(tombstones_, {})) free_cell(number);
}

Expected<void> Ledger::make_room() {
  while (free_.size() < index_.size() + kSpareCells) {
    const std::uint32_t first = memory_.head().cells;
    if (auto grown = memory_.grow(); !grown) return grown;
    for (std::uint32_t number = first; number < memory_.head().cells; ++number)
      free_.push_back(number);
  }
  return {};
}

std::uint32_t Ledger::take_cell() {
  KV_CHECK(!free_.empty(), index_.size());
  const std::uint32_t number = free_.back();
  free_.pop_back();
  return number;
}

void Ledger::free_cell(std::uint32_t number) {
  memory_.cell(number).generation.store(kUnused, std::memory_order_release);
  // Before anything else is written into it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  free_.push_back(number);
}

}  // namespace kvhive
