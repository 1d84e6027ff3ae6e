#pragma once
// The board: what the engines of a host know of each other. It is a memory object with a row for
// each process slot. The keeper makes it and writes who has died; it maps nothing. Each engine
// writes its own load. Clients never see it: load would tell them of others.
//
// Which engine takes a request is decided from it. Every request has one engine whose turn it is.
// That engine takes it at once, unless another has fewer requests by far, or would serve it much
// sooner. After a while others take it, as far as they have room; and what waits at an engine that
// is much busier than they are, or that has done nothing for a while: it is in a long step, or
// stopped. An engine that does not even hear is nobody's choice: it has no turns, and what waits
// there is the others' in turn. All of them look at the same board, but not at the same instant: if
// two want one request, the slot's word decides (ipc/channel/slot_state.hpp); if both leave it to
// the other, who doubts that the other takes it looks at it again a little later.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/memory/memory_object.hpp"
#include "base/stop_watch.hpp"
#include "ipc/channel/slot_state.hpp"

namespace kvhive {

inline const std::string kBoardName = "kvhive-board";

/// How soon an engine would serve one more request.
struct alignas(8) EngineLoad {
  std::uint32_t room = 0;    ///< requests that it can run beside those it has
  std::uint32_t queued = 0;  ///< tokens of the requests that wait there
  friend bool operator==(const EngineLoad&, const EngineLoad&) = default;
};
static_assert(std::atomic<EngineLoad>::is_always_lock_free);

/// For what an engine lacks blocks of the device tier.
struct Lack {
  std::uint16_t lanes = 0;  ///< bit i: for a request of lane i (pool/eviction/lanes.hpp)
  bool of_all = false;      ///< the tier has too few; else a lane may have no more

  void add(std::size_t lane) { lanes |= static_cast<std::uint16_t>(1u << lane); }
  bool has(std::size_t lane) const { return (lanes >> lane & 1u) != 0; }
  Lack& operator|=(const Lack& other) {
    lanes |= other.lanes;
    of_all |= other.of_all;
    return *this;
  }
  friend bool operator==(const Lack&, const Lack&) = default;
};

/// The same on the board.
struct alignas(8) ToldLack {
  std::uint32_t life = 0;   ///< of the engine that lacks them; 0: none does
  std::uint16_t lanes = 0;  ///< the highest bit: of_all
  std::uint16_t count = 0;  ///< of what has been told

  static constexpr std::uint16_t kOfAll = 1u << 15;
  Lack lack() const { return {static_cast<std::uint16_t>(lanes & ~kOfAll), (lanes & kOfAll) != 0}; }
  friend bool operator==(const ToldLack&, const ToldLack&) = default;
};
static_assert(std::atomic<ToldLack>::is_always_lock_free);

struct alignas(64) BoardRow {
  /// The newest life of this slot that has ended; those before it have, too. Written by the keeper.
  std::atomic<std::uint32_t> ended;
  /// The newest life that serves (0: it takes no more requests), its load, and counts that rise
  /// with each of its steps and while it tokenises; and while it hears clients. Written by that
  /// engine.
  std::atomic<std::uint32_t> serving;
  std::atomic<EngineLoad> load;
  std::atomic<std::uint64_t> beats;
  std::atomic<std::uint64_t> hears;
  /// Which model it serves: engines of other models have other channels. Written before `serving`.
  std::atomic<std::uint32_t> model;
  std::atomic<ToldLack> lacking;  ///< told anew with each plan of a step while it lacks blocks
  /// Requests that the engine has taken, and how many of them `load` counts. Written by it.
  std::atomic<std::uint32_t> taken, counted;
  std::atomic<std::uint32_t> is_in_step;  ///< written by it as a step begins and ends
};
static_assert(sizeof(BoardRow) == 64);
inline constexpr std::size_t kBoardBytes = kMaxProcesses * sizeof(BoardRow);

/// Called by the keeper when the process's end is certain. Error: the board cannot be written.
[[nodiscard]] inline Expected<void> write_end(const UniqueFd& board, EngineLife dead) {
  const std::size_t place = dead.slot * sizeof(BoardRow) + offsetof(BoardRow, ended);
  if (pwrite(board.get(), &dead.life, sizeof dead.life, static_cast<off_t>(place)) !=
      ssize_t{sizeof dead.life})
    return os_failure("write the board");
  return {};
}

class Board;

/// A request, by what all engines know it by.
struct RequestName {
  std::uint64_t channel = 0;
  std::uint32_t slot = 0;
  std::uint32_t number = 0;  ///< of the slot's requests
};

/// Requests that engines can run beside those they have, by the engine's slot. Negative = none.
using Rooms = std::array<std::int32_t, kMaxProcesses>;

/// What an engine knows of a channel's requests that no load tells of.
struct Since {
  std::uint32_t taken = 0;   ///< requests that it has taken
  std::uint32_t tokens = 0;  ///< theirs
  std::uint32_t left = 0;    ///< turns that it has left to others
  /// Instead of what loads tell (Board::rooms_after).
  std::optional<Rooms> rooms{};
};

/// What an engine does with a request that waits.
enum class Choice : std::uint8_t {
  take,
  leave,  ///< to another engine
  doubt,  ///< the same, but that one may have less room than this one sees, and leave it, too
};

/// An engine as others see it.
struct Member {
  std::shared_ptr<Board> board;
  EngineLife life;
  std::uint32_t number = 0;              ///< the engine's
  ModelId model{};                       ///< that it serves
  std::uint32_t tokens_per_step = 2048;  ///< that it computes of prompts
  std::uint32_t most_queued = 0;         ///< tokens that may wait in an engine; 0 = any number

  /// Whether an engine with `load` would serve a request much later than one with the load `other`,
  /// or would refuse it where the other would not. What the board says may be a step old.
  bool is_much_busier(EngineLoad load, EngineLoad other) const;
};

class Board {
 public:
  [[nodiscard]] static Expected<Board> attach(const UniqueFd& file) {
    auto map = MappedMemory::map(file.get(), kBoardBytes, Access::read_write, kBoardName);
    if (!map) return forward_error(map);
    return Board(std::move(*map));
  }
  /// Rows that the caller keeps.
  explicit Board(std::array<BoardRow, kMaxProcesses>& rows) : rows_(rows.data()) {}

  /// Whether the engine's process has ended. Known late, never too early.
  bool is_dead(EngineLife engine) const {
    const std::uint32_t ended = rows_[engine.slot].ended.load(std::memory_order_acquire);
    return engine.life == 0 || (ended - engine.life) % (kMostLives + 1) < kMostLives / 2;
  }

  /// From now on `self` takes its turn.
  void serve(EngineLife self, EngineLoad load, ModelId model = {}) {
    rows_[self.slot].model.store(model.value, std::memory_order_relaxed);
    rows_[self.slot].taken.store(0, std::memory_order_relaxed);
    tell_load(self, load, 0);
    beat(self);
    hear(self);
    rows_[self.slot].serving.store(self.life, std::memory_order_release);
  }
  /// \param counted     of the requests that it has taken, those that the load counts
  /// \param is_in_step  whether one is under way
  void tell_load(EngineLife self, EngineLoad load, std::uint32_t counted, bool is_in_step = false) {
    rows_[self.slot].is_in_step.store(is_in_step ? 1 : 0, std::memory_order_relaxed);
    rows_[self.slot].load.store(load, std::memory_order_relaxed);
    rows_[self.slot].counted.store(counted, std::memory_order_release);
  }
  /// The engine has taken a request: load_of() counts it from now on, although its load is told
  /// later.
  void take(EngineLife self) { rows_[self.slot].taken.fetch_add(1, std::memory_order_relaxed); }
  /// Of those taken, so many were refused or are read first: no load counts them.
  void take_back(EngineLife self, std::uint32_t requests) {
    rows_[self.slot].taken.fetch_sub(requests, std::memory_order_relaxed);
  }
  /// From now on `self` takes no turn, and others take its turns.
  void leave(EngineLife self) { rows_[self.slot].serving.store(0, std::memory_order_release); }
  /// The engine has done something: not while it is in a step, whatever it is sent meanwhile.
  void beat(EngineLife self) { rows_[self.slot].beats.fetch_add(1, std::memory_order_relaxed); }
  /// What waits at `self` for blocks; nothing = no longer. To be told again as long as it waits.
  void tell_lack(EngineLife self, const Lack& lack);
  /// What other engines lack that live, and have told so in the last 10 s: one that is stopped
  /// needs no blocks. Asked by one thread.
  Lack others_lack(EngineLife self, std::uint64_t now_ns = monotonic_ns());
  static constexpr std::uint64_t kLackIsBelieved = 10'000'000'000;
  /// As told, with what was taken since.
  EngineLoad load_of(EngineLife engine) const {
    const BoardRow& row = rows_[engine.slot];
    EngineLoad load = row.load.load(std::memory_order_relaxed);
    const std::uint32_t counted = row.counted.load(std::memory_order_acquire);
    load.room -= std::min(load.room, row.taken.load(std::memory_order_relaxed) - counted);
    return load;
  }

  /// The engine listens to its clients. Called once in a while where something waits.
  void hear(EngineLife self) { rows_[self.slot].hears.fetch_add(1, std::memory_order_relaxed); }

  /// Looks at what engines have done since the last call. To be called once in a while, by one
  /// thread, which also asks the following.
  void look();
  static constexpr std::uint8_t kLooks = 10;
  /// Whether the engine has done nothing for kLooks calls: it is in a very long step, or stopped.
  /// One that has nothing to do is silent, too.
  bool is_silent(EngineLife engine) const { return silent_[engine.slot].looks >= kLooks; }
  /// Whether it has done nothing for so long that what waits there may wait for ever.
  bool is_stuck(EngineLife engine) const { return silent_[engine.slot].looks == kMostLooks; }
  static constexpr std::uint8_t kMostLooks = 250;
  bool is_in_step(EngineLife engine) const {
    return rows_[engine.slot].is_in_step.load(std::memory_order_relaxed) != 0;
  }
  /// Whether a step of the engine has lasted for so long. It may hear all the same: other threads
  /// do that. It has no turns, as long as there is an engine of its model that goes on.
  bool hangs(EngineLife engine) const { return is_stuck(engine) && is_in_step(engine); }
  /// This process has taken a request that waited at the engine, which counts it until it looks.
  void relieve(EngineLife engine) {
    Relief& relief = reliefs_[engine.slot];
    const std::uint64_t beats = rows_[engine.slot].beats.load(std::memory_order_relaxed);
    if (std::exchange(relief.beats, beats) != beats) relief.requests = 0;
    ++relief.requests;
  }
  /// The room of an engine that is silent, with what this process has taken from it since it was.
  std::uint32_t room_when_heard(EngineLife engine) const {
    const Relief& relief = reliefs_[engine.slot];
    const bool is_counted =
        relief.beats != rows_[engine.slot].beats.load(std::memory_order_relaxed);
    return load_of(engine).room + (is_counted ? 0 : relief.requests);
  }
  /// Whether it has not even heard. Of one for which nothing waits, nobody knows.
  bool is_deaf(EngineLife engine) const { return deaf_[engine.slot].looks >= kLooks; }

  /// The engine whose turn a request is, as `self` sees it. Requests that are submitted together
  /// are spread evenly; those whose streams end together go to different engines the next time.
  std::optional<EngineLife> turn(EngineLife self, const RequestName& request) const;

  /// The room that engines have once they have taken those of the requests whose turn it is. In a
  /// burst, one that is a little later than others has not taken its turns yet. It will.
  Rooms rooms_after(EngineLife self, std::span<const RequestName> turns) const;

  /// What `self` does with the request, if nobody has taken it.
  /// \param was_left  `self` left it in doubt, kLeftFor ago, and nobody has taken it
  Choice choose(const Member& self, const RequestName& request, const Since& since = {},
                bool was_left = false) const;
  static constexpr std::chrono::nanoseconds kLeftFor{2'000'000};

 private:
  struct Serving {
    std::array<EngineLife, kMaxProcesses> engines;
    std::size_t count = 0;
  };
  /// The engines of the same model that serve and are not dead or deaf and do not hang, in the
  /// order of their slots. If all hang: those that do.
  Serving serving(EngineLife self) const;
  /// A count of an engine when it was last looked at, and for how many looks it has been that.
  struct Seen {
    std::uint64_t count = 0;
    std::uint8_t looks = 0;
    void look(std::uint64_t now) {
      looks = std::exchange(count, now) == now ? std::min<std::uint8_t>(looks + 1, kMostLooks) : 0;
    }
  };
  explicit Board(MappedMemory map)
      : map_(std::move(map)), rows_(reinterpret_cast<BoardRow*>(map_.data())) {}

  MappedMemory map_;
  BoardRow* rows_;
  std::array<Seen, kMaxProcesses> silent_{}, deaf_{};
  /// What was seen last of what a process lacks, and since when.
  struct SeenLack {
    ToldLack told;
    std::uint64_t since = 0;
  };
  std::array<SeenLack, kMaxProcesses> lacks_{};
  /// What was taken from an engine since its last beat.
  struct Relief {
    std::uint64_t beats = 0;
    std::uint32_t requests = 0;
  };
  std::array<Relief, kMaxProcesses> reliefs_{};
};

}  // namespace kvhive
