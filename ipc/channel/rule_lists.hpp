#pragma once
// How the lists of a request's rules lie in a channel, one behind the other: TokenBias[biases], the
// bytes of each bad word as uint32[bad_words], these words, and TokenId[allowed]. All but the last
// are short and can be damaged, so an engine reads them first: to refuse them costs little.

#include <cstdint>
#include <span>

#include "config/sampling/token_rules.hpp"

namespace kvhive {

/// How many entries each list has.
struct RuleCounts {
  std::uint32_t biases = 0, allowed = 0, bad_words = 0;
};

RuleCounts counts_of(const TokenRules& rules);

/// What the lists take; 0 = there are none.
std::size_t list_bytes(const TokenRules& rules);

/// Whether so many entries are allowed and can take so many bytes.
bool may_take(const RuleCounts& counts, std::size_t bytes);

/// \param to  list_bytes() of them, aligned for uint32
void write_lists(const TokenRules& rules, std::span<std::byte> to);

/// The lists but for the allowed tokens, from bytes that a client has written: all up to the
/// allowed tokens. Errc::bad_argument if the lists need other than these bytes.
[[nodiscard]] Expected<void> read_short_lists(std::span<const std::byte> from,
                                              const RuleCounts& counts, TokenRules& rules);

}  // namespace kvhive
