#pragma once
// What the kernel says of a process. Nothing here waits for the process, stopped or not.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace kvhive {

struct ProcessFacts {
  std::string program;            ///< its name, at most 15 bytes, chosen by itself
  char state = '?';               ///< as in /proc: R, S, D, T (stopped), t (traced), Z ...
  std::uint64_t age_seconds = 0;  ///< since its start

  bool is_stopped() const { return state == 'T' || state == 't'; }
  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

/// Nothing if there is no such process in this PID namespace.
std::optional<ProcessFacts> facts_of(pid_t pid);

}  // namespace kvhive
