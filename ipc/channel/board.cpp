#include "ipc/channel/board.hpp"

#include <algorithm>
#include <boost/container_hash/hash.hpp>

namespace kvhive {

bool Member::is_much_busier(EngineLoad load, EngineLoad other) const {
  constexpr std::uint64_t kSteps = 2;
  if (other.room == 0)  // both let it wait
    return load.room == 0 && load.queued > most_queued - most_queued / 4 &&
           other.queued < most_queued / 2;
  return load.room == 0 || load.queued >= other.queued + kSteps * tokens_per_step;
}

void Board::look() {
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    silent_[slot].look(rows_[slot].beats.load(std::memory_order_relaxed));
    deaf_[slot].look(rows_[slot].hears.load(std::memory_order_relaxed));
  }
}

void Board::tell_lack(EngineLife self, const Lack& lack) {
  std::atomic<ToldLack>& row = rows_[self.slot].lacking;
  const ToldLack before = row.load(std::memory_order_relaxed);
  ToldLack told;
  if (lack != Lack{}) {
    const std::uint16_t of_all = lack.of_all ? ToldLack::kOfAll : 0;
    told = {self.life, static_cast<std::uint16_t>(lack.lanes | of_all),
            static_cast<std::uint16_t>(before.count + 1)};
  }
  if (told != before) row.store(told, std::memory_order_relaxed);
}

Lack Board::others_lack(EngineLife self, std::uint64_t now_ns) {
  Lack all;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const ToldLack told = rows_[slot].lacking.load(std::memory_order_relaxed);
    SeenLack& seen = lacks_[slot];
    if (told != seen.told) seen = {told, now_ns};
    if (slot == self.slot || is_dead({slot, told.life})) continue;
    if (now_ns - seen.since < kLackIsBelieved) all |= told.lack();
  }
  return all;
}

Board::Serving Board::serving(EngineLife self) const {
  Serving serving, hanging;
  const std::uint32_t model = rows_[self.slot].model.load(std::memory_order_relaxed);
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const EngineLife engine{slot, rows_[slot].serving.load(std::memory_order_acquire)};
    if (is_dead(engine) || (is_deaf(engine) && engine != self)) continue;
    if (rows_[slot].model.load(std::memory_order_relaxed) != model) continue;
    Serving& others = hangs(engine) ? hanging : serving;
    others.engines[others.count++] = engine;
  }
  return serving.count != 0 ? serving : hanging;
}

/// Streams of one client that end together are submitted anew together, in the same slots. Were the
/// next turn always the next engine's, they would go round all engines together, and those that are
/// faster would meet others, for ever.
static std::size_t place_of(const RequestName& request, std::size_t engines) {
  std::size_t offset = 0;
  boost::hash_combine(offset, request.channel);
  boost::hash_combine(offset, request.slot / engines);
  boost::hash_combine(offset, request.number);
  return (request.slot + (offset >> 32)) % engines;  // the lower bits are hardly mixed
}

std::optional<EngineLife> Board::turn(EngineLife self, const RequestName& request) const {
  const auto [engines, count] = serving(self);
  return count == 0 ? std::nullopt : std::optional(engines[place_of(request, count)]);
}

Rooms Board::rooms_after(EngineLife self, std::span<const RequestName> turns) const {
  const auto [engines, count] = serving(self);
  Rooms rooms{};
  for (std::size_t i = 0; i < count; ++i)
    rooms[engines[i].slot] = static_cast<std::int32_t>(load_of(engines[i]).room);
  for (const RequestName& request : turns)
    if (count != 0) --rooms[engines[place_of(request, count)].slot];
  return rooms;
}

Choice Board::choose(const Member& self, const RequestName& request, const Since& since,
                     bool was_left) const {
  constexpr std::uint32_t kMoreRoom = 2;
  const auto [engines, count] = serving(self.life);
  if (count == 0) return Choice::take;
  if (hangs(self.life) && !hangs(engines.front())) return Choice::leave;  // others go on
  const EngineLife next = engines[place_of(request, count)];
  const auto load = [&](EngineLife engine) {
    EngineLoad expected = load_of(engine);
    if (since.rooms)
      expected.room = static_cast<std::uint32_t>(std::max(0, (*since.rooms)[engine.slot]));
    return expected;
  };
  EngineLoad mine = load(self.life);
  if (next != self.life) {
    mine.queued += since.tokens;
    const EngineLoad theirs = load(next);
    if (self.is_much_busier(theirs, mine) || mine.room >= theirs.room + kMoreRoom)
      return Choice::take;
    return theirs.room < kMoreRoom && mine.room != 0 ? Choice::doubt : Choice::leave;
  }
  if (was_left) mine = load_of(self.life);  // not as if it had all its turns
  const bool is_others =
      std::ranges::any_of(std::span(engines).first(count), [&](EngineLife other) {
        if (other == self.life) return false;
        const EngineLoad theirs = load(other);
        return self.is_much_busier(mine, theirs) ||
               (!was_left && theirs.room >= mine.room + since.left + 2 * kMoreRoom);
      });
  return is_others ? Choice::doubt : Choice::take;
}

}  // namespace kvhive
