#pragma once
// What one domain may have of an engine, beside the others.

#include <cstdint>

namespace kvhive {

struct DomainShare {
  /// While several domains want more than there is, the tokens that are computed for each are as
  /// their weights.
  float weight = 1;
  std::uint32_t max_num_seqs = 0;       ///< of the domain that run at once; 0 = as --max-num-seqs
  std::uint32_t max_queued_tokens = 0;  ///< of its requests that wait; 0 = as --max-queued-tokens

  friend bool operator==(const DomainShare&, const DomainShare&) = default;
};

}  // namespace kvhive
