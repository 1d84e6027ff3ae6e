#pragma once
// One piece of shared memory: a sealed memfd and its mapping. It has no name, so nothing is left in
// /dev/shm, nothing can be squatted, and nobody can shrink it under a mapping. The only file that
// catches Boost's exceptions.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "config/expected.hpp"
#include "config/unique_fd.hpp"

namespace kvhive {

/// Creates a memfd of `bytes`, backed by real memory from the start (a machine without room is an
/// error here, never a SIGBUS later), mode 0600, sealed against shrinking and growing. `name` shows
/// up in /proc only.
Expected<UniqueFd> create_memory(const std::string& name, std::size_t bytes);

/// The same memory, but the descriptor allows no writing and no writable mapping: for the
/// inspector.
Expected<UniqueFd> reopen_read_only(int fd);

enum class Access : std::uint8_t { read_only, read_write };

/// A mapping of a memfd. Unmaps when dropped; the memory lives as long as anybody has it open or
/// mapped.
class MappedMemory {
 public:
  MappedMemory() = default;

  /// Maps all of `fd` after checking that it has `bytes` bytes and is sealed; `name` is for the
  /// error text.
  static Expected<MappedMemory> map(int fd, std::size_t bytes, Access access,
                                    const std::string& name);

  /// Maps every page now, so that the first access of each does not fault.
  void populate() const;
  /// Moves the memory into huge pages, for everybody who maps it from now on, ourselves included:
  /// for whoever made it, before others use it. Takes about 4 s a GiB. A wish, not an error if the
  /// kernel declines.
  void make_huge_pages() const;
  /// Asks for huge pages when the memory is first touched; a wish, too.
  void prefer_huge_pages() const;
  /// A forked child must not touch the pool in its parent's name: it gets no copy of this mapping.
  void hide_from_children() const;

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t size() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
  Access access_ = Access::read_only;
};

}  // namespace kvhive
