#include "tests/enemies/attacks.hpp"

#include "base/check.hpp"

namespace kvhive::testing {

const std::vector<Attack>& all_attacks() {
  static const std::vector<Attack> all = [] {
    std::vector<Attack> joined;
    for (const auto& some : {connection_attacks(), descriptor_attacks(), prompt_attacks(),
                             channel_attacks(), process_attacks()})
      joined.insert(joined.end(), some.begin(), some.end());
    KV_CHECK(joined.size() <= kMostAttacks, joined.size());
    return joined;
  }();
  return all;
}

}  // namespace kvhive::testing
