#pragma once
// Has the kernel merge a file's small pages into huge ones, as a hostile client does. The kernel
// keeps pages locked that it merges: for seconds, if they are mapped often enough.

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "base/memory/memory_object.hpp"
#include "base/round_up.hpp"

namespace kvhive::testing {

#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

/// More than a pipe has room for, and not whole.
inline constexpr std::size_t kManyExtents = 17 * kHugePage + kHugePage / 2;

/// Tries it with each 2 MiB of a file of kManyExtents.
/// \return  for each, 0 = merged, or an errno: EAGAIN = somebody holds a page
inline std::vector<int> merge_all(const UniqueFd& file) {
  const UniqueFd reader = reopen_read_only(file.get()).value();
  const std::size_t whole = round_up(kManyExtents, kHugePage);  // also beyond the file's end
  void* const room =
      mmap(nullptr, whole + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const place =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(room), kHugePage));
  KV_CHECK(mmap(place, whole, PROT_READ, MAP_SHARED | MAP_FIXED, reader.get(), 0) == place);
  std::vector<int> results;
  for (std::size_t at = 0; at < whole; at += kHugePage)
    results.push_back(madvise(place + at, kHugePage, MADV_COLLAPSE) == 0 ? 0 : errno);
  munmap(room, whole + kHugePage);
  return results;
}

inline bool this_system_merges_pages() {
  const UniqueFd file = create_memory("merged", kManyExtents).value();
  const auto map = MappedMemory::map(file.get(), kManyExtents, Access::read_write, "").value();
  std::memset(map.data(), 1, kManyExtents);
  return merge_all(file).front() == 0;
}

}  // namespace kvhive::testing
