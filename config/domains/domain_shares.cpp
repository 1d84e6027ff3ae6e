#include "config/domains/domain_shares.hpp"

#include <algorithm>
#include <sstream>

#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

constexpr float kLeastWeight = 0.001f, kMostWeight = 1000;

/// "weight:3"
Expected<void> parse_part(ShareRule& rule, const std::string& text) {
  DomainShare& share = rule.share;
  const auto parts = split_list(text, ':');
  if (parts.size() != 2)
    return bad_value(text,
                     "is no part of a share; write weight:NUMBER, max-num-seqs:NUMBER, "
                     "max-queued-tokens:NUMBER, min-blocks:NUMBER or max-blocks:NUMBER");
  const std::string &name = parts[0], &value = parts[1];
  if (name == "weight") {
    if (!parse_number(share.weight, value) ||
        !(share.weight >= kLeastWeight && share.weight <= kMostWeight))
      return bad_value(text, "is no weight; give a number in [0.001, 1000], 1 is usual");
    return {};
  }
  if (name == "min-blocks" || name == "max-blocks") {
    BlockAmount& amount = name == "min-blocks" ? rule.blocks.min : rule.blocks.max;
    if (!parse_amount(amount, value))
      return bad_value(text,
                       "is no number of blocks; give a whole number >= 1, or a percentage of the "
                       "device tier, e.g. 25%");
    return {};
  }
  const bool is_seqs = name == "max-num-seqs";
  if (!is_seqs && name != "max-queued-tokens")
    return bad_value(name,
                     "is no part of a share; use weight, max-num-seqs, max-queued-tokens, "
                     "min-blocks or max-blocks");
  std::uint32_t& limit = is_seqs ? share.max_num_seqs : share.max_queued_tokens;
  if (!parse_number(limit, value) || limit == 0)
    return bad_value(text, "is no limit; give a whole number >= 1, or leave it out");
  return {};
}

Expected<ShareRule> parse_share(const std::string& text) {
  const auto parts = split_list(text, '=');
  if (parts.size() != 2 || parts[0].empty())
    return bad_value(text,
                     "is no share; write DOMAIN=weight:3,max-num-seqs:64 (or * for all other "
                     "domains)");
  ShareRule rule{parts[0], {}, {}};
  for (const std::string& part : split_list(parts[1], ','))
    if (auto parsed = parse_part(rule, part); !parsed) return forward_error(parsed);
  if (rule.domain == kOtherDomains && rule.blocks.is_given())
    return bad_value(text,
                     "gives blocks to domains without a name; min-blocks and max-blocks are for "
                     "named domains");
  return rule;
}

/// Minimums that cannot be kept, whatever the size of the pool. (How many blocks there are is known
/// when the pool is made: Domains::block_limits() checks the rest.)
Expected<void> check_percentages(const std::vector<ShareRule>& rules) {
  float sum = 0;
  for (const auto& [domain, share, blocks] : rules) {
    sum += blocks.min.percent;
    if (sum > 100)
      return bad_value("min-blocks:" + to_string(blocks.min),
                       "of '" + domain +
                           "' makes more than 100% with the minimums before it; lower "
                           "one of them");
  }
  return {};
}

}  // namespace

bool parse_amount(BlockAmount& amount, const std::string& text) {
  if (text.empty() || text.back() != '%')
    return parse_number(amount.blocks, text) && amount.blocks != 0;
  return parse_number(amount.percent, text.substr(0, text.size() - 1)) && amount.percent > 0 &&
         amount.percent <= 100;
}

std::uint32_t BlockAmount::of(std::uint32_t capacity) const {
  if (percent == 0) return blocks;
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(capacity * double{percent} / 100));
}

std::string to_string(const BlockAmount& amount) {
  if (amount.percent == 0) return std::to_string(amount.blocks);
  std::ostringstream text;
  text << amount.percent << '%';
  return text.str();
}

Expected<std::vector<ShareRule>> parse_shares(const std::string& text) {
  std::vector<ShareRule> rules;
  for (const std::string& piece : split_list(text, ';')) {
    if (piece.empty()) continue;  // a semicolon at the end
    auto rule = parse_share(piece);
    if (!rule) return forward_error(rule);
    if (std::any_of(rules.begin(), rules.end(),
                    [&](const ShareRule& other) { return other.domain == rule->domain; }))
      return bad_value(rule->domain, "is there twice; write its share in one place");
    rules.push_back(std::move(*rule));
  }
  if (auto possible = check_percentages(rules); !possible) return forward_error(possible);
  return rules;
}

std::string to_string(const std::vector<ShareRule>& rules) {
  std::ostringstream text;
  for (const auto& [domain, share, blocks] : rules) {
    text << (text.tellp() == 0 ? "" : ";") << domain << "=weight:" << share.weight;
    if (share.max_num_seqs != 0) text << ",max-num-seqs:" << share.max_num_seqs;
    if (share.max_queued_tokens != 0) text << ",max-queued-tokens:" << share.max_queued_tokens;
    if (blocks.min.is_given()) text << ",min-blocks:" << to_string(blocks.min);
    if (blocks.max.is_given()) text << ",max-blocks:" << to_string(blocks.max);
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
