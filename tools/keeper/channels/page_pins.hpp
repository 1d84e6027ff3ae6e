#pragma once
// Keeps the kernel from merging a file's pages into huge ones.
//
// A process that has a file of shared memory mapped, for reading too, may have its pages merged
// (MADV_COLLAPSE). The kernel then keeps up to 512 pages locked while it walks all mappings of the
// file for each of them. A process may have 65,530 mappings, and copies of itself. Whoever touches
// such a page meanwhile waits, for 5 to 45 s as tried, and cannot even be killed.
//
// The kernel merges no pages of which somebody holds a reference. So one page of each 2 MiB is kept
// in a pipe that nobody reads.

#include <cstddef>
#include <vector>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

/// Holds one page of each 2 MiB of the file, until the returned pipes are closed. Call this before
/// any stranger has the file: it touches these pages.
/// \param written  so many bytes are written already; to pages after them a zero is written
[[nodiscard]] Expected<std::vector<UniqueFd>> pin_pages(const UniqueFd& file, std::size_t written,
                                                        std::size_t bytes);

}  // namespace kvhive
