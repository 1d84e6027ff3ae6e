#include "config/domains/domain_shares.hpp"

#include <algorithm>
#include <sstream>

#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

constexpr float kLeastWeight = 0.001f, kMostWeight = 1000;

/// "weight:3"
Expected<void> parse_part(DomainShare& share, const std::string& text) {
  const auto parts = split_list(text, ':');
  if (parts.size() != 2)
    return bad_value(text,
                     "is no part of a share; write weight:NUMBER, max-num-seqs:NUMBER or "
                     "max-queued-tokens:NUMBER");
  const std::string &name = parts[0], &value = parts[1];
  if (name == "weight") {
    if (!parse_number(share.weight, value) ||
        !(share.weight >= kLeastWeight && share.weight <= kMostWeight))
      return bad_value(text, "is no weight; give a number in [0.001, 1000], 1 is usual");
    return {};
  }
  const bool is_seqs = name == "max-num-seqs";
  if (!is_seqs && name != "max-queued-tokens")
    return bad_value(name, "is no part of a share; use weight, max-num-seqs or max-queued-tokens");
  std::uint32_t& limit = is_seqs ? share.max_num_seqs : share.max_queued_tokens;
  if (!parse_number(limit, value) || limit == 0)
    return bad_value(text, "is no limit; give a whole number >= 1, or leave it out");
  return {};
}

Expected<ShareRule> parse_rule(const std::string& text) {
  const auto parts = split_list(text, '=');
  if (parts.size() != 2 || parts[0].empty())
    return bad_value(text,
                     "is no share; write DOMAIN=weight:3,max-num-seqs:64 (or * for all other "
                     "domains)");
  ShareRule rule{parts[0], {}};
  for (const std::string& part : split_list(parts[1], ','))
    if (auto parsed = parse_part(rule.share, part); !parsed) return forward_error(parsed);
  return rule;
}

}  // namespace

Expected<std::vector<ShareRule>> parse_shares(const std::string& text) {
  std::vector<ShareRule> rules;
  for (const std::string& piece : split_list(text, ';')) {
    if (piece.empty()) continue;  // a semicolon at the end
    auto rule = parse_rule(piece);
    if (!rule) return forward_error(rule);
    if (std::any_of(rules.begin(), rules.end(),
                    [&](const ShareRule& other) { return other.domain == rule->domain; }))
      return bad_value(rule->domain, "is there twice; write its share in one place");
    rules.push_back(std::move(*rule));
  }
  return rules;
}

std::string to_string(const std::vector<ShareRule>& rules) {
  std::ostringstream text;
  for (const auto& [domain, share] : rules) {
    text << (text.tellp() == 0 ? "" : ";") << domain << "=weight:" << share.weight;
    if (share.max_num_seqs != 0) text << ",max-num-seqs:" << share.max_num_seqs;
    if (share.max_queued_tokens != 0) text << ",max-queued-tokens:" << share.max_queued_tokens;
  }
  return text.str();
}

DomainShare share_of(std::string_view domain, const std::vector<ShareRule>& rules) {
  DomainShare others;
  for (const ShareRule& rule : rules) {
    if (rule.domain == domain) return rule.share;
    if (rule.domain == kOtherDomains) others = rule.share;
  }
  return others;
}

}  // namespace kvhive
