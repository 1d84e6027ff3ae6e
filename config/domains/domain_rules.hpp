#pragma once
// Which users share cached blocks, as the operator writes it:
// "research=alice,1001,@staff;batch=bob". In a TOML file the same is a table, [domains] with
// research = ["alice", 1001, "@staff"].

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// One domain and its members: users by name or number, groups by name or number after an '@'.
struct DomainRule {
  std::string name;
  std::vector<std::string> members;

  friend bool operator==(const DomainRule&, const DomainRule&) = default;
};

/// The domain of all clients that no rule names, with --sharing all.
inline constexpr std::string_view kDomainOfAll = "all";
/// The domain of one user that no rule names, with --sharing user: this prefix and the user's
/// number.
inline constexpr std::string_view kDomainOfUser = "uid-";

/// Checks what can be checked without asking the system: the spelling of names, and that no member
/// is named twice. Errors name the value and the remedy.
[[nodiscard]] Expected<std::vector<DomainRule>> parse_domains(const std::string& text);

/// As parse_domains() reads it.
std::string to_string(const std::vector<DomainRule>& rules);

/// The same rules, with users and groups by the numbers that this system has for them. Error: it
/// does not know one.
[[nodiscard]] Expected<std::vector<DomainRule>> with_numbers(std::vector<DomainRule> rules);

}  // namespace kvhive
