#pragma once
// All operations of the two ends of a channel: every public function of ClientChannel and
// EngineChannel that writes the channel or rings, and the functions of a Sink, by which an engine
// writes results. And what the other side does while a process stands at some instruction of them.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/crash/channel/channel_stage.hpp"

namespace kvhive::testing {

enum class Side { client, engine };

struct ChannelOperation {
  std::string name;
  Side victim;
  /// Brings both sides to where the operation begins.
  std::function<void(ChannelStage&)> prepare;
  /// The operation, run by the victim. True if it did what the name says.
  std::function<bool(ChannelStage&)> run;
  /// False if the operation writes different bytes each time.
  bool is_repeatable = true;
  /// What must hold of the channel at every instruction; nothing if empty.
  std::function<bool(ChannelStage&)> invariant = {};
};

const std::vector<ChannelOperation>& channel_operations();

struct PeersDeed {
  std::string name;
  std::function<void(ChannelStage&)> run;
};

/// What a client does while its engine stands still, and the other way round.
const std::vector<PeersDeed>& deeds_of(Side peer);

/// For the tests' output.
inline void PrintTo(const ChannelOperation& operation, std::ostream* out) {
  *out << operation.name;
}

}  // namespace kvhive::testing
