#pragma once
// What processes have of the system: descriptors, memory objects, memory. By /proc, so that nothing
// a daemon says of itself is believed.

#include <sys/types.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace kvhive::testing {

/// Open descriptors.
std::size_t descriptors_of(pid_t pid);

/// Memory objects called `memfd:kvhive-KIND` that a process has open, by inode: no two that live at
/// a time have the same. An empty kind is any.
std::set<ino_t> memory_objects_of(pid_t pid, const std::string& kind = {});

/// Whether a process has such an object open or mapped.
bool has_memory_object(pid_t pid, const std::string& kind);

/// All processes that have one of these objects open or mapped.
std::vector<pid_t> holders_of(const std::set<ino_t>& objects);

/// A row of /proc/PID/status in bytes: "VmRSS", "RssAnon", "RssShmem". 0 = no such process.
std::size_t memory_of(pid_t pid, const std::string& row);

std::vector<pid_t> children_of(pid_t parent);

/// What lies in /dev/shm.
std::set<std::string> named_shared_memory();

}  // namespace kvhive::testing
