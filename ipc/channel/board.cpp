#include "ipc/channel/board.hpp"

#include <algorithm>

namespace kvhive {

bool is_much_busier(EngineLoad load, EngineLoad other, std::uint32_t tokens_per_step) {
  constexpr std::uint64_t kSteps = 2;
  if (other.room == 0) return false;
  return load.room == 0 || load.queued >= other.queued + kSteps * tokens_per_step;
}

Board::Serving Board::serving() const {
  Serving serving;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const EngineLife engine{slot, rows_[slot].serving.load(std::memory_order_acquire)};
    if (!is_dead(engine)) serving.engines[serving.count++] = engine;
  }
  return serving;
}

std::optional<EngineLife> Board::turn(std::uint64_t ticket) const {
  const auto [engines, count] = serving();
  return count == 0 ? std::nullopt : std::optional(engines[ticket % count]);
}

bool Board::is_for(const Member& self, std::uint64_t ticket) const {
  const auto [engines, count] = serving();
  if (count == 0) return true;
  const EngineLife next = engines[ticket % count];
  const EngineLoad load = load_of(self.life);
  if (next != self.life) return is_much_busier(load_of(next), load, self.tokens_per_step);
  return std::none_of(engines.begin(), engines.begin() + count, [&](EngineLife other) {
    return other != self.life && is_much_busier(load, load_of(other), self.tokens_per_step);
  });
}

}  // namespace kvhive
