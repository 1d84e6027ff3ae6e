#pragma once
// Resources that a process uses: descriptors, memory objects, memory. They are read from /proc, not
// from what a daemon reports.

#include <sys/types.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace kvhive::testing {

/// The number of open descriptors.
std::size_t descriptors_of(pid_t pid);

/// Inodes of the memory objects called `memfd:kvhive-KIND` that a process has open. No two objects
/// that exist at the same time have the same inode. An empty `kind` stands for any.
std::set<ino_t> memory_objects_of(pid_t pid, const std::string& kind = {});

/// Whether a process has such an object open or mapped.
bool has_memory_object(pid_t pid, const std::string& kind);

/// All processes that have one of these objects open or mapped.
std::vector<pid_t> holders_of(const std::set<ino_t>& objects);

/// A row of /proc/PID/status in bytes: "VmRSS", "RssAnon", "RssShmem". 0 = no such process.
std::size_t memory_of(pid_t pid, const std::string& row);

std::vector<pid_t> children_of(pid_t parent);
inline bool has_a_child(pid_t parent) { return parent != 0 && !children_of(parent).empty(); }

/// Names of the files in /dev/shm.
std::set<std::string> named_shared_memory();

}  // namespace kvhive::testing
