#pragma once
// Starts a child to answer one question: on its standard output, or by a message.

#include <optional>
#include <string>

#include "base/expected.hpp"
#include "tools/keeper/child.hpp"

namespace kvhive {

/// Descriptors that ask() watches beside the child; -1 = none.
struct Listening {
  int stop = -1;    ///< when it can be read, the child is killed and there is no answer
  int answer = -1;  ///< when it can be read, the answer is there, and the child is left running
};

/// Starts a child and waits until it ends or has answered. The output of a child that is left
/// running is not read any more. An error carries the last line of its standard error.
///
/// \param standard_input  the child's; -1 = the keeper's
/// \return  its standard output; nothing if `stop` could be read
[[nodiscard]] Expected<std::optional<std::string>> ask(Child& child, const Listening& listening,
                                                       int standard_input = -1);

}  // namespace kvhive
