#pragma once
// Starts a child process that answers one question, on its standard output or by a message.

#include <optional>
#include <string>

#include "base/expected.hpp"
#include "tools/keeper/children/child.hpp"

namespace kvhive {

/// Descriptors that ask() watches beside the child; -1 = none.
struct Listening {
  int stop = -1;    ///< when it becomes readable, the child is killed and there is no answer
  int answer = -1;  ///< when it becomes readable, it holds the answer; the child is left running
};

/// Starts a child and waits until it ends, and is collected, or has answered. Only a daemon that
/// starts asks: it serves nobody yet. If the child is left running, its output is not read any
/// more. If the child fails, the error is the last line of its standard error.
///
/// \param standard_input  the child's standard input; -1 = the same as the keeper's
/// \return  the child's standard output; nothing if `stop` became readable
[[nodiscard]] Expected<std::optional<std::string>> ask(Child& child, const Listening& listening,
                                                       int standard_input = -1);

}  // namespace kvhive
