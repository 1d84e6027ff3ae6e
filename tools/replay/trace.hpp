#pragma once
// Recorded traffic as a pool sees it: one request after another, each a list of content ids, one
// per block.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct TraceRequest {
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::vector<std::uint64_t> content;  ///< ids of the prompt's blocks; the last may be partial
  std::string session{};               ///< whose request it is; empty = not told

  // If a content id stands for `block_tokens` tokens:
  std::size_t full_blocks(std::uint64_t block_tokens) const {
    return std::min<std::uint64_t>(content.size(), input_tokens / block_tokens);
  }
  /// Whether the prompt ends with a block that is not full. A prompt has at least one block.
  bool has_tail(std::uint64_t block_tokens) const {
    const std::size_t full = full_blocks(block_tokens);
    return input_tokens % block_tokens != 0 || full == 0 || content.size() > full;
  }
};

/// Reads JSON lines (plain or gzip) with input_length, output_length and the prompt's content ids:
/// hash_ids [id, ...], as in Mooncake's traces, or id_runs [[first, count], ...], which is shorter
/// for long conversations; and, if it is there, "session", a text or a number.
///
/// \param limit  read at most so many requests; 0 = all
[[nodiscard]] Expected<std::vector<TraceRequest>> read_trace(const std::filesystem::path& path,
                                                             std::size_t limit);

}  // namespace kvhive
