#pragma once
// What a step has to wait for between its layers.

#include <cstdint>
#include <functional>

#include "base/expected.hpp"

namespace kvhive {

/// Called before work that reads or writes a layer's KV is queued, for example to make the stream
/// wait for the layer's swap-in. The argument is the layer's place in the blocks
/// (LayerPlace::slot), which several layers may have.
using BeforeLayer = std::function<Expected<void>(std::int32_t slot)>;

}  // namespace kvhive
