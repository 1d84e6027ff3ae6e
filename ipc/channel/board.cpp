#include "ipc/channel/board.hpp"

namespace kvhive {

bool is_much_busier(EngineLoad load, EngineLoad other, std::uint32_t tokens_per_step) {
  constexpr std::uint64_t kSteps = 2;
  if (other.room == 0) return false;
  return load.room == 0 || load.queued >= other.queued + kSteps * tokens_per_step;
}

std::optional<EngineLife> Board::turn(std::uint64_t ticket) const {
  std::array<EngineLife, kMaxProcesses> serving;
  std::size_t count = 0;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const EngineLife engine{slot, rows_[slot].serving.load(std::memory_order_acquire)};
    if (!is_dead(engine)) serving[count++] = engine;
  }
  if (count == 0) return std::nullopt;
  return serving[ticket % count];
}

bool Board::is_for(const Member& self, std::uint64_t ticket) const {
  const auto next = turn(ticket);
  if (!next) return true;
  const EngineLoad load = load_of(self.life);
  if (*next != self.life) return is_much_busier(load_of(*next), load, self.tokens_per_step);
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    const EngineLife other{slot, rows_[slot].serving.load(std::memory_order_acquire)};
    if (other != self.life && !is_dead(other) &&
        is_much_busier(load, load_of(other), self.tokens_per_step))
      return false;
  }
  return true;
}

}  // namespace kvhive
