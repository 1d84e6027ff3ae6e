#pragma once
// A child whose standard output, or a message of which, is an answer.

#include <optional>
#include <string>

#include "base/expected.hpp"
#include "tools/keeper/child.hpp"

namespace kvhive {

/// Descriptors that matter while a child is being asked; -1 = there is none.
struct Listening {
  int stop = -1;  ///< when it can be read nobody wants an answer any more, and the child is killed
  int answer = -1;  ///< when it can be read the answer is there, and the child may run on
};

/// Starts a child and waits until it ends, or has answered and runs on. Of one that runs on nobody
/// reads the output any more. An error carries the last line of its standard error.
///
/// \param standard_input  the child's; -1 = ours
/// \return  its standard output; nothing if we were told to stop
Expected<std::optional<std::string>> ask(Child& child, const Listening& listening,
                                         int standard_input = -1);

}  // namespace kvhive
