#pragma once
// kvhived --take-over: a running daemon goes on with this program. Its front executes it in its own
// place, as when a front was killed; pool, connections and requests stay as they are. Engines
// follow when an operator starts them again (kvhive engine restart).

#include <string>

#include "config/options.hpp"

namespace kvhive {

/// Has the daemon on this socket do so, and waits until it has. Errors, before anything has
/// happened: the ledger or the pool of this program is another, it does not know an option of the
/// daemon's, or cannot be executed.
/// \return  a line for the user
[[nodiscard]] Expected<std::string> take_over(const std::string& socket);

}  // namespace kvhive
