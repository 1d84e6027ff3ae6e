#pragma once
// A board and its engines, for tests that need no keeper.

#include <array>
#include <memory>

#include "ipc/channel/board.hpp"

namespace kvhive::testing {

class TestBoard {
 public:
  /// A new engine in the slot. The one before it has ended.
  Member join(std::uint32_t number = 0, std::uint32_t slot = 0, EngineLoad load = {64, 0},
              ModelId model = {}) {
    const Member member = join_without_turns(number, slot);
    board_->serve(member.life, load, model);
    return member;
  }
  /// The same for an engine that only helps.
  Member join_without_turns(std::uint32_t number, std::uint32_t slot) {
    end(slot);
    return {board_, {slot, lives_[slot] = next_life(lives_[slot])}, number};
  }
  /// The slot's engine has ended.
  void end(std::uint32_t slot) { (*rows_)[slot].ended = lives_[slot]; }
  Board& operator*() const { return *board_; }
  Board* operator->() const { return board_.get(); }

 private:
  using Rows = std::array<BoardRow, kMaxProcesses>;
  std::shared_ptr<Rows> rows_ = std::make_shared<Rows>();
  std::shared_ptr<Board> board_ = std::make_shared<Board>(*rows_);
  std::array<std::uint32_t, kMaxProcesses> lives_{};
};

}  // namespace kvhive::testing
