#pragma once
// A snapshot of what a HiveWatch knows now.

#include "tools/cli/hive_watch.hpp"
#include "tools/snapshot/snapshot.hpp"

namespace kvhive {

Snapshot snapshot_of(const HiveWatch::News& news);
/// On the clock of Snapshot::seconds.
double seconds_now();

}  // namespace kvhive
