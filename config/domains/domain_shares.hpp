#pragma once
// The domains' shares, as the operator writes them:
// "research=weight:3,max-num-seqs:64,min-blocks:25%;*=max-queued-tokens:20000". In a TOML file the
// same is a table, [shares] with research = {weight = 3, max-num-seqs = 64, min-blocks = "25%"}.

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "config/domains/block_share.hpp"
#include "config/domains/domain_share.hpp"

namespace kvhive {

/// Instead of a domain's name: all domains that no other rule names.
inline constexpr std::string_view kOtherDomains = "*";

struct ShareRule {
  std::string domain;
  DomainShare share;
  BlockShare blocks;  ///< not for kOtherDomains

  friend bool operator==(const ShareRule&, const ShareRule&) = default;
};

/// Checks all but whether there are such domains, and so many blocks. Errors name the value and the
/// remedy.
[[nodiscard]] Expected<std::vector<ShareRule>> parse_shares(const std::string& text);

/// As parse_shares() reads it.
std::string to_string(const std::vector<ShareRule>& rules);

/// The share of one domain.
DomainShare share_of(std::string_view domain, const std::vector<ShareRule>& rules);

}  // namespace kvhive
