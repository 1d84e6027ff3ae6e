#pragma once
// The ledger: what a keeper writes down for its successor. A memory object that front and keepers
// have mapped, and nobody else has open.
//
// Rows are plain structs, found by kind and key. put() and erase() write aside; commit() makes all
// that was written since the last one valid by one store. So whenever the keeper is killed, the
// ledger holds the rows of one commit, complete.
//
// The inbox is where the keeper receives packets (ipc/protocol.hpp: PacketBuffer): the system call
// that takes a packet from a socket's queue also writes it into the ledger.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "ipc/protocol.hpp"
#include "tools/keeper/succession/orphan_ends.hpp"

namespace kvhive {

/// Bump it whenever a byte of the ledger changes: a keeper of another version is refused.
inline constexpr std::uint32_t kLedgerVersion = 11;

/// The packet that is being handled.
struct Inbox {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  int socket = -1;  ///< of the peer whose it is
  /// The packet is done once this generation is committed.
  std::atomic<std::uint64_t> handled_by{0};
  std::atomic<std::uint32_t> tries{0};  ///< keepers that have begun to handle it
  PacketBuffer packet;

  /// For a successor: a packet was taken, and what it has caused is not written down.
  bool was_left_undone(const class Ledger& ledger) const;
};

struct LedgerHead {
  static constexpr std::uint64_t kMagic = 0x3167646c76686b00;  // "\0khvldg1"
  std::uint64_t magic = kMagic;
  std::uint32_t version = kLedgerVersion;
  std::uint32_t cell_bytes = 0;
  std::atomic<std::uint64_t> generation{0};  ///< the last commit
  std::atomic<std::uint32_t> cells{0};       ///< that have memory
  /// Of each text: its bytes, and in the highest bit in which of its two places it is.
  std::array<std::atomic<std::uint32_t>, 4> texts{};
  /// The pool is made: a successor can go on. Before that it begins anew.
  std::atomic<std::uint32_t> is_made{0};
  /// The daemon was told to end. Never set back.
  std::atomic<std::uint32_t> is_ending{0};
  std::atomic<std::uint32_t> keepers{0};  ///< that were started
  /// Keepers that were killed since one of them has handled an event.
  std::atomic<std::uint32_t> fruitless{0};
  OrphanEnds orphans;
};

/// The memory. The front has it before there is a keeper; keepers inherit it with its mapping.
class LedgerMemory {
 public:
  static const std::size_t kFirstBytes;  ///< of its file, which grows
  [[nodiscard]] static Expected<LedgerMemory> create();
  /// The same memory in a program that was executed since. Error: of another version.
  [[nodiscard]] static Expected<LedgerMemory> open(UniqueFd fd);
  LedgerMemory(LedgerMemory&& other) noexcept
      : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)) {}
  LedgerMemory& operator=(LedgerMemory&&) = delete;
  ~LedgerMemory();

  int fd() const { return fd_.get(); }
  LedgerHead& head() const { return *reinterpret_cast<LedgerHead*>(data_); }
  Inbox& inbox() const;
  /// What does not fit into rows: what the front has made, the options, the pool, and the program
  /// that is to go on.
  enum class Text : std::uint8_t { estate, options, pool, successor };
  static constexpr std::size_t kMostText = std::size_t{128} << 10;  ///< bytes of each
  /// Valid at once, and by one store.
  void write_text(Text which, std::string_view text) const;
  std::string text(Text which) const;

 private:
  friend class Ledger;
  struct Cell;
  LedgerMemory(UniqueFd fd, std::byte* data) : fd_(std::move(fd)), data_(data) {}
  [[nodiscard]] static Expected<LedgerMemory> map(UniqueFd fd);
  Cell& cell(std::uint32_t number) const;
  std::byte* place_of(Text which, bool is_second) const;
  [[nodiscard]] Expected<void> grow() const;

  UniqueFd fd_;
  std::byte* data_;
};

class Ledger {
 public:
  enum class Kind : std::uint32_t {
    none,
    daemon,
    peer,
    slot,
    child,
    channel,
    domain,
    repair,
    order
  };
  static constexpr std::size_t kMostBytes = 488;  ///< of a row

  /// Reads the rows of the last commit.
  explicit Ledger(const LedgerMemory& memory);

  template <class Row>
  void put(Kind kind, std::uint64_t key, const Row& row) {
    static_assert(std::is_trivially_copyable_v<Row> && sizeof(Row) <= kMostBytes);
    write(kind, key, std::as_bytes(std::span(&row, 1)));
  }
  void erase(Kind kind, std::uint64_t key);
  void commit();

  /// Makes room for as many rows as there are, and some: then put() finds some. Error: no memory.
  [[nodiscard]] Expected<void> make_room();

  /// Calls visit(key, row) for each row of a kind, in the order of keys, as they were put.
  template <class Row, class Visit>
  void for_each(Kind kind, Visit&& visit) const {
    for (auto at = index_.lower_bound({kind, 0}); at != index_.end() && at->first.first == kind;
         ++at) {
      Row row;
      std::memcpy(static_cast<void*>(&row), bytes_of(at->second), sizeof row);
      visit(at->first.second, row);
    }
  }
  std::size_t size() const { return index_.size(); }

  /// The next commit's number.
  std::uint64_t next() const { return next_; }
  const LedgerMemory& memory() const { return memory_; }

 private:
  using Place = std::pair<Kind, std::uint64_t>;
  void write(Kind kind, std::uint64_t key, std::span<const std::byte> bytes);
  const std::byte* bytes_of(std::uint32_t cell) const;
  void replace(const Place& place, std::uint32_t cell);
  std::uint32_t take_cell();
  void free_cell(std::uint32_t cell);

  const LedgerMemory& memory_;
  std::map<Place, std::uint32_t> index_;  ///< the rows' cells
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> replaced_;        ///< free once the next commit is done
  std::map<Place, std::uint32_t> tombstones_;  ///< the same, after those
  std::uint64_t next_ = 1;
};

}  // namespace kvhive
