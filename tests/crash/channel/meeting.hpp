#pragma once
// One side of a channel stands at some instruction while the other does something; then it goes on,
// and so do both.

#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/channel/victim.hpp"

namespace kvhive::testing {

/// A copy of the victim, on a copy of the channel, meets its peer. The victim itself stays as it
/// is.
Complaints meet(ChannelStage& stage, const Victim& victim, Side peer, const PeersDeed& deed);

}  // namespace kvhive::testing
