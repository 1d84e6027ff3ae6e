#pragma once
// How our programs end, where somebody draws conclusions from it.

namespace kvhive {

/// A GPU's context was lost: what the engine had under way on the device is not to be trusted, and
/// the operator's policy says what else is not.
inline constexpr int kExitDeviceLost = 70;

}  // namespace kvhive
