#pragma once
// Who shares with whom, as the operator writes it: "research=alice,1001,@staff;batch=bob". In a
// TOML file the same is a table, [domains] with research = ["alice", 1001, "@staff"].

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// One domain and who is in it: users by name or number, groups the same way after an '@'.
struct DomainRule {
  std::string name;
  std::vector<std::string> members;
};

/// The domain of all clients that no rule names, when they share (Options::sharing).
inline constexpr std::string_view kDomainOfAll = "all";
/// Of one user that no rule names: this and the user's number.
inline constexpr std::string_view kDomainOfUser = "uid-";

/// Checks what can be checked without asking the system: names, and that nobody is named twice.
Expected<std::vector<DomainRule>> parse_domains(const std::string& text);

}  // namespace kvhive
