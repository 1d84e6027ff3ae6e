#pragma once
// Recorded traffic as a pool sees it: one request after another, each a list of content ids, one
// per block.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct TraceRequest {
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::vector<std::uint64_t> content;  ///< ids of the prompt's blocks; the last may be partial
};

/// Reads JSON lines (plain or gzip) with input_length, output_length and the prompt's content ids:
/// hash_ids [id, ...], as in Mooncake's traces, or id_runs [[first, count], ...], which is shorter
/// for long conversations.
///
/// \param limit  read at most so many requests; 0 = all
[[nodiscard]] Expected<std::vector<TraceRequest>> read_trace(const std::filesystem::path& path,
                                                             std::size_t limit);

}  // namespace kvhive
