#pragma once
// Which system calls each program of the daemon makes once it has started. Found with strace, from
// the C library's sources, and by the test suite, which fails for a call that is refused
// (tests/CMakeLists.txt).

#include <span>
#include <string_view>
#include <vector>

namespace kvhive {

enum class Program : unsigned char { keeper, steward, engine };
std::string_view to_string(Program program);

/// A system call that is allowed if the low 32 bits of one argument have a certain value.
struct CallWithArgument {
  const char* name;
  unsigned argument;  ///< 0 = the first
  unsigned mask;
  unsigned value;  ///< of the argument's bits in `mask`
};

struct CallList {
  std::vector<std::span<const char* const>> calls;
  std::vector<std::span<const CallWithArgument>> with_argument;
};

/// Besides these, steward and engine may send signals to their own threads (tgkill). The keeper's
/// list has tgkill without a condition: its children inherit the filter and have other pids.
CallList calls_of(Program program);

}  // namespace kvhive
