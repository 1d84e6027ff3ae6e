#pragma once
// The open descriptors of this process that nobody knows: a killed keeper had just opened them, or
// was about to close them.

#include <set>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvhive {

/// All descriptors that are open.
std::set<int> open_descriptors();

struct Strays {
  std::vector<UniqueFd> connections;  ///< accepted on the listening socket
  std::vector<UniqueFd> others;
};

/// The open descriptors that are not in `known`.
Strays find_strays(const std::set<int>& known, int listener);

/// Frees what memory a stray holds that is a channel's: its client may have it mapped for ever.
/// Then closes it. May take as long as a client likes: to be called where nobody waits.
void close_stray(UniqueFd stray);

}  // namespace kvhive
