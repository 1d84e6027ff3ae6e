#include "config/domains/domain_rules.hpp"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "config/domains/domain_name.hpp"
#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

Expected<void> check_name(const std::string& name) {
  if (!is_domain_name(name))
    return bad_value(name, std::string("is no name for a domain; use ") + kDomainNameRule);
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

/// As the rules write it: a group has an '@' before its number.
std::optional<std::string> number_of(const std::string& member) {
  const bool is_group = member[0] == '@';
  const std::string name = member.substr(is_group ? 1 : 0);
  std::uint32_t number = 0;
  if (parse_number(number, name)) return (is_group ? "@" : "") + std::to_string(number);
  if (is_group) {
    const group* const found = getgrnam(name.c_str());
    return found == nullptr ? std::nullopt : std::optional("@" + std::to_string(found->gr_gid));
  }
  const passwd* const found = getpwnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(std::to_string(found->pw_uid));
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

Expected<std::vector<DomainRule>> with_numbers(std::vector<DomainRule> rules) {
  std::map<std::string, std::string> domain_of;
  for (DomainRule& rule : rules) {
    std::vector<std::string> numbers;
    for (const std::string& member : rule.members) {
      const auto number = number_of(member);
      if (!number)
        return failure(Errc::bad_argument, "domains: '" + member + "' in '" + rule.name +
                                               "' is unknown to this system; correct it, or give "
                                               "its number");
      const auto [other, is_new] = domain_of.emplace(*number, rule.name);
      if (is_new) numbers.push_back(*number);
      if (other->second != rule.name)  // named twice in different ways
        return failure(Errc::bad_argument, "domains: '" + member + "' (number " +
                                               number->substr(number->find_first_not_of('@')) +
                                               ") is in '" + other->second + "' and again in '" +
                                               rule.name + "'; keep it in one of them");
    }
    rule.members = std::move(numbers);
  }
  return rules;
}

}  // namespace kvhive
