#pragma once
// A traced child that runs one operation on a channel, and the state of all that it shares with the
// other side.

#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_operations.hpp"
#include "tests/crash/memory_operand.hpp"
#include "tests/crash/traced_child.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {

/// A side's turns, with a pause before each. Called in a traced child.
[[noreturn]] inline void take_turns(ChannelStage& stage, Side side) {
  while (true) {
    TracedChild::pause();
    if (side == Side::client)
      stage.client().turn();
    else
      stage.engine().turn();
  }
}

class Victim {
 public:
  /// The child stands before the operation. After the operation it takes its turns.
  Victim(ChannelStage& stage, const ChannelOperation& operation)
      : stage_(stage),
        child_([this, &operation] { *has_done_it_ = operation.run(stage_); },
               [this, &operation] { take_turns(stage_, operation.victim); }),
        image_(stage.medium()) {
    look();
  }

  /// Runs one instruction. False if it was the last.
  bool step() {
    const bool is_call = is_at_system_call_;
    const bool goes_on = child_.step();
    has_changed_ = !image_.has_bytes_of(stage_.medium());
    if (has_changed_) image_.take_bytes(stage_.medium());
    if (is_call) has_changed_ |= image_.take_rings(stage_.medium());
    if (goes_on) look();
    return goes_on;
  }

  const TracedChild& child() const { return child_; }
  /// The state now.
  const ChannelImage& image() const { return image_; }
  /// Whether the last step has changed it. True at the start.
  bool has_changed() const { return has_changed_; }
  /// Whether the next instruction is a system call.
  bool is_at_system_call() const { return is_at_system_call_; }
  /// Whether the next instruction reads or writes a mark or a slot's fields, other than the
  /// request.
  bool is_at_slot() const { return is_at_slot_; }
  bool has_done_it() const { return *has_done_it_; }

 private:
  void look() {
    const user_regs_struct registers = child_.registers();
    is_at_system_call_ = TracedChild::is_system_call(registers);
    const auto operand = memory_operand(registers);
    is_at_slot_ = operand && (is_mark(*operand) || is_answer(*operand));
  }
  bool is_mark(std::uint64_t address) const {
    const auto marks =
        reinterpret_cast<std::uint64_t>(stage_.client().channel().raw_requests().data());
    return address - marks < kStorySlots * sizeof(RequestMark);
  }
  /// In the client's mapping, or in the engine's.
  bool is_answer(std::uint64_t address) const {
    for (const std::byte* answers :
         {stage_.client().channel().raw_answers().data(), stage_.medium().answers.data()}) {
      const auto place = address - reinterpret_cast<std::uint64_t>(answers + slots_offset());
      if (place < kStorySlots * sizeof(AnswerSlot) &&
          place % sizeof(AnswerSlot) < offsetof(AnswerSlot, body))
        return true;
    }
    return false;
  }

  ChannelStage& stage_;
  SharedValue<bool> has_done_it_;
  TracedChild child_;
  ChannelImage image_;
  bool has_changed_ = true;
  bool is_at_system_call_ = false;
  bool is_at_slot_ = false;
};

}  // namespace kvhive::testing
