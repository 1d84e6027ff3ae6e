#pragma once

#include <initializer_list>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

/// From now on these signals come through a non-blocking descriptor (signalfd(2)), to this thread
/// and those that it starts, and never as themselves: whoever is told to end a second time, while
/// it ends, still ends by its own code. Called before there are threads but those that block all
/// signals (base/loop/signals_blocked.hpp).
[[nodiscard]] Expected<UniqueFd> signals_as_descriptor(std::initializer_list<int> signals);

/// The next of these signals; 0 if none has come.
int next_signal(int descriptor);

}  // namespace kvhive
