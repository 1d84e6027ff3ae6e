#include "config/options.hpp"

#include <cstdlib>

namespace kvhive {

}  // namespace kvhive
