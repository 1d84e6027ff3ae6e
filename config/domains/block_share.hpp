#pragma once
// How many blocks of the device tier a domain is sure of, and how many it may have at most.

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvhive {

/// A number of blocks as the operator writes it: "4096", or "25%" of the device tier.
struct BlockAmount {
  std::uint32_t blocks = 0;
  float percent = 0;  ///< of the tier's blocks; if it is not 0, `blocks` is 0

  bool is_given() const { return blocks != 0 || percent != 0; }
  /// In a tier of `capacity` blocks. Percentages are rounded down, but to at least one block.
  std::uint32_t of(std::uint32_t capacity) const;
  friend bool operator==(const BlockAmount&, const BlockAmount&) = default;
};

/// As the operator writes it.
std::string to_string(const BlockAmount& amount);

/// Reads one. False: it is none, and `amount` may have changed.
bool parse_amount(BlockAmount& amount, const std::string& text);

struct BlockShare {
  BlockAmount min;  ///< none given = 0
  BlockAmount max;  ///< none given = as many as there are

  bool is_given() const { return min.is_given() || max.is_given(); }
  friend bool operator==(const BlockShare&, const BlockShare&) = default;
};

/// The same in blocks, for one domain.
struct BlockLimits {
  /// While the domain has no more blocks than this, others' allocations do not evict its blocks.
  std::uint32_t min = 0;
  std::uint32_t max = 0;  ///< it has no more blocks than this; 0 = no limit

  friend bool operator==(const BlockLimits&, const BlockLimits&) = default;
};

/// Domains 0 .. 7 can have limits: the keeper gives the domains with a share of the blocks the
/// lowest numbers. The pool counts the blocks of each of them (pool/eviction/lanes.hpp).
inline constexpr std::size_t kLimitedDomains = 8;

}  // namespace kvhive
