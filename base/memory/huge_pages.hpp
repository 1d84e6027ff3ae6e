#pragma once
// Huge pages for a memfd.

#include <cstddef>
#include <functional>

namespace kvhive {

/// What the kernel forms of small pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Asked now and then while something takes long; false ends that. Empty: it is never asked.
using GoesOn = std::function<bool()>;

/// An unused address range of `bytes`, aligned to huge pages; null if there is none. Before
/// Linux 6.7 the kernel does not choose such an address by itself. Another thread may map something
/// there before the caller does.
void* aligned_place(std::size_t bytes);

/// How many threads clear so much memory: one for each GiB, but at most one for each processor that
/// this process may use, and 16.
std::size_t clearing_threads(std::size_t bytes);

/// Backs an empty memfd with huge pages, from its start, until the kernel has no more of them, or
/// it takes much longer than small pages would; the rest is left to the caller.
///
/// \param threads  the caller's among them; the others have ended when this returns
/// \param goes_on  asked by the calling thread, at first and for each 64 MiB that it takes
/// \return  bytes in them
std::size_t take_huge_pages(int fd, std::size_t bytes, std::size_t threads, const GoesOn& goes_on);

}  // namespace kvhive
