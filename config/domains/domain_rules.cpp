#include "config/domains/domain_rules.hpp"

#include <algorithm>
#include <map>

#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kLongestName = 32;

Expected<void> check_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > kLongestName ||
      name.find_first_not_of(kAllowed) != std::string::npos)
    return bad_value(name,
                     "is no name for a domain; use 1 to 32 letters, digits, '.', '_' and '-'");
  if (name == kDomainOfAll || name.rfind(kDomainOfUser, 0) == 0)
    return bad_value(name,
                     "is the daemon's own name for clients that no rule names; choose another");
  return {};
}

Expected<DomainRule> parse_rule(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos)
    return bad_value(text, "names no members; write NAME=USER,UID,@GROUP,...");
  const auto names = split_list(std::string_view(text).substr(0, equals), '=');
  DomainRule rule{names.empty() ? "" : names.front(),
                  split_list(std::string_view(text).substr(equals + 1), ',')};
  if (auto valid = check_name(rule.name); !valid) return forward_error(valid);
  if (rule.members.empty())
    return bad_value(rule.name,
                     "has no members; name users, uids, @groups or @gids, or leave it out");
  for (const std::string& member : rule.members)
    if (member.empty() || member == "@" || member.find_first_of("=: ") != std::string::npos)
      return bad_value(member, "in '" + rule.name +
                                   "' is neither a user nor an @group; separate members " +
                                   "by commas and domains by semicolons");
  return rule;
}

}  // namespace

Expected<std::vector<DomainRule>> parse_domains(const std::string& text) {
  std::vector<DomainRule> rules;
  std::map<std::string, std::string> domain_of;
  for (const std::string& piece : split_list(text, ';')) {
    if (piece.empty()) continue;  // a semicolon at the end
    auto rule = parse_rule(piece);
    if (!rule) return forward_error(rule);
    if (std::any_of(rules.begin(), rules.end(),
                    [&](const DomainRule& other) { return other.name == rule->name; }))
      return bad_value(rule->name, "is there twice; list all of its members in one place");
    for (const std::string& member : rule->members)
      if (const auto [other, is_new] = domain_of.emplace(member, rule->name); !is_new)
        return bad_value(member, "is in '" + other->second + "' and again in '" + rule->name +
                                     "'; keep it in one of them");
    rules.push_back(std::move(*rule));
  }
  return rules;
}

std::string to_string(const std::vector<DomainRule>& rules) {
  std::string text;
  for (const DomainRule& rule : rules) {
    text += (text.empty() ? "" : ";") + rule.name + "=";
    for (std::size_t i = 0; i < rule.members.size(); ++i)
      text += (i == 0 ? "" : ",") + rule.members[i];
  }
  return text;
}

}  // namespace kvhive
