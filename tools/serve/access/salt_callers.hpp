#pragma once
// Whose cache salts are taken. A salt keeps a caller's cached blocks from all who do not know it.
// So whoever may send any salt can try to guess those of others of the same domain, and a gateway
// that makes salts of its users' names protects nothing if the users reach the service themselves.

#include <cstdint>

namespace kvhive {

enum class SaltCallers : std::uint8_t {
  trusted,  ///< those with an API key; where no keys are asked for, those of this machine
  all,
  none,
};

}  // namespace kvhive
