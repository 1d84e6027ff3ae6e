#pragma once
// The keeper's tables as JSON, for `kvhive pool`.

#include <optional>
#include <string>

#include "tools/keeper/tables.hpp"

namespace kvhive {

/// \param socket    the path that the daemon listens on
/// \param command   that it was started with
/// \param yours     the domain that clients of the asking user are in; nothing = they are refused
std::string status_of(const Tables& tables, const std::string& socket,
                      const std::vector<std::string>& command, std::optional<DomainId> yours);

}  // namespace kvhive
