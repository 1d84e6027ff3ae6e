#pragma once
// A traced child that runs one operation on a channel, and the state of all that it shares with the
// other side.

#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_operations.hpp"
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
  /// The child stands before the operation. After the operation it takes its turns, between pauses.
  Victim(ChannelStage& stage, const ChannelOperation& operation)
      : stage_(stage),
        child_([this, &operation] { *has_done_it_ = operation.run(stage_); },
               [this, &operation] { take_turns(stage_, operation.victim); }),
        image_(stage.medium()) {}

  /// Runs one instruction. False if it was the last.
  bool step() {
    const bool is_call = child_.is_at_system_call();
    const bool goes_on = child_.step();
    has_changed_ = !image_.has_bytes_of(stage_.medium());
    if (has_changed_) image_.take_bytes(stage_.medium());
    if (is_call) has_changed_ |= image_.take_rings(stage_.medium());
    return goes_on;
  }

  const TracedChild& child() const { return child_; }
  /// The state now.
  const ChannelImage& image() const { return image_; }
  /// Whether the last step has changed it. True at the start.
  bool has_changed() const { return has_changed_; }
  bool has_done_it() const { return *has_done_it_; }

 private:
  ChannelStage& stage_;
  SharedValue<bool> has_done_it_;
  TracedChild child_;
  ChannelImage image_;
  bool has_changed_ = true;
};

}  // namespace kvhive::testing
