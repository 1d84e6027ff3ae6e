#pragma once
// Which full blocks of a sequence stay in the prefix cache in a group with a sliding window. Its
// blocks are of use only where another sequence begins to compute, and there only the last ones:
// all of them would take the place of blocks that are found more often.
//
// Source: vLLM v1 prefix_cache_retention_interval (SlidingWindowManager.reachable_block_mask,
// replay_boundaries).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/expected.hpp"
#include "config/cache_groups.hpp"

namespace kvhive {

struct WindowRetention {
  /// Tokens from one place where a sequence can begin to the next; 0 = only the places that are
  /// known (ResumePoints); nothing = each block's end.
  std::optional<std::uint32_t> interval;

  friend bool operator==(const WindowRetention&, const WindowRetention&) = default;
};

/// "dense", or a number of tokens. Errors say what would be right.
[[nodiscard]] Expected<WindowRetention> parse_window_retention(const std::string& text);
std::string to_string(const WindowRetention& retention);

/// Where another sequence is known to begin, in tokens.
struct ResumePoints {
  std::size_t prompt_tokens = 0;  ///< the same prompt again: before its last token
  /// The end of a beginning that others have in common with the sequence: groups of full attention
  /// had it in the cache, and those of windows did not. 0 = none.
  std::size_t junction = 0;
};

/// Whether block `block` of a sequence is kept. Always true but for sliding windows.
bool is_retained(const WindowRetention& retention, const CacheGroup& group, std::size_t block,
                 const ResumePoints& points, std::size_t block_size);

}  // namespace kvhive
