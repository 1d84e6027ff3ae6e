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

/// Pipes with room for a page of each 2 MiB of several files: their ends for reading. They hold the
/// pages as long as they are open. Error: the user's limit of pipe memory is reached.
[[nodiscard]] Expected<std::vector<UniqueFd>> make_pin_pipes(std::size_t files, std::size_t bytes);

/// Puts a page of each 2 MiB of the file into the pipes, where there is room. A page that has no
/// memory yet gets it. This touches the pages, so it may have to wait for a process that can map
/// the file.
/// \return  0, or an errno; EFAULT = there is no memory for a page
[[nodiscard]] int pin_pages(const std::vector<UniqueFd>& pipes, int file, std::size_t bytes);

}  // namespace kvhive
