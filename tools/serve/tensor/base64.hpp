#pragma once
// Bytes that came as base64 (RFC 4648, section 4): padded, without line breaks.

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// An error's text goes on behind the name of what was decoded.
[[nodiscard]] Expected<std::vector<std::byte>> decode_base64(std::string_view text);

}  // namespace kvhive
