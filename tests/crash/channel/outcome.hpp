#pragma once
// What must come of a channel after a death or a stop: every request ends, the client reads each
// token once and in order, no side sleeps while there is something for it, and nothing is left.

#include <functional>
#include <string>
#include <vector>

#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_stage.hpp"

namespace kvhive::testing {

using Complaints = std::vector<std::string>;
/// One side of the channel does what it can do now. False if its process has ended.
using Turn = std::function<bool()>;

/// Client and engine take turns a fixed number of times, which is enough for all requests to end,
/// then work through one more, which needs the whole heap.
void conduct(StoryStatus& status, const Turn& client, const Turn& engine);

/// The engine was killed and left this: another engine takes the channel over, and the client goes
/// on.
Complaints after_death_of_engine(ChannelStage& stage, const ChannelImage& left);
/// The client was killed: its engine goes on until the keeper tells it of the death; in a second
/// examination, another engine takes over before that.
Complaints after_death_of_client(ChannelStage& stage, const ChannelImage& left);

/// What was said to `status`, if anything.
Complaints complaints_of(const StoryStatus& status);

}  // namespace kvhive::testing
