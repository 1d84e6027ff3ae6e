#pragma once
// Exit codes on which another program acts.

namespace kvhive {

/// The engine has lost its GPU context: the results of its current step on the device cannot be
/// trusted. The gpu-fault option decides which other blocks are dropped.
inline constexpr int kExitDeviceLost = 70;

}  // namespace kvhive
