#pragma once
// A text in a memfd, for a text that a packet has no room for. It travels as a descriptor.

#include <string>
#include <string_view>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

[[nodiscard]] Expected<UniqueFd> write_text_memory(std::string_view text);

[[nodiscard]] Expected<std::string> read_text_memory(const UniqueFd& memory);

}  // namespace kvhive
