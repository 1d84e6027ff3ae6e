#pragma once
// One piece of shared memory: a sealed memfd and its mapping. It has no name, so nothing is left in
// /dev/shm, nothing can be squatted, and nobody can shrink it under a mapping. The only file that
// catches Boost's exceptions.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

enum class Pages : std::uint8_t {
  usual,
  huge,  ///< as many as the kernel finds in a few seconds: 0.1 to 3 s a GiB, by how scattered its
         ///< memory is. A wish, never an error
};

/// Creates a memfd of `bytes`, backed by real memory from the start (a machine without room is an
/// error here, never a SIGBUS later), mode 0600, sealed against shrinking and growing. `name` shows
/// up in /proc only.
Expected<UniqueFd> create_memory(const std::string& name, std::size_t bytes,
                                 Pages pages = Pages::usual);

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
