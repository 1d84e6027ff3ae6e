#pragma once
// Names of what the pool's blocks have as numbers and digests. The pool has no names: the keeper
// tells them.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hashing/block_hash.hpp"

namespace kvhive {

class PoolNames {
 public:
  /// Knows no name.
  PoolNames() = default;
  /// \param domains   names, by number
  /// \param adapters  that the daemon serves
  PoolNames(std::vector<std::string> domains, const std::vector<std::string>& adapters);

  bool knows(DomainId domain) const { return domain.value < domains_.size(); }
  /// The number as a text, where the name is not known.
  std::string domain(DomainId domain) const;
  /// The adapter that contents were computed with, if their sequence begins with this extra key.
  /// Nothing = without one; or with one and a cache salt: that is one digest of both, and hides
  /// both.
  std::optional<std::string> adapter(const ExtraKey& start) const;

 private:
  std::vector<std::string> domains_;
  std::vector<std::pair<ExtraKey, std::string>> adapters_;
};

}  // namespace kvhive
