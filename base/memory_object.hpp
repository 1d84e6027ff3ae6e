#pragma once
// Shared memory: a sealed memfd and its mapping. It has no name, so that nothing is left in
// /dev/shm and no process can take the name first; the seal keeps a process from shrinking it while
// others have it mapped. The only file that catches Boost's exceptions.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

enum class Pages : std::uint8_t {
  usual,
  huge,  ///< as many as the kernel can form: takes 0.1 to 3 s per GiB, by how fragmented its memory
         ///< is. If it finds none, that is no error
};

/// Creates a memfd of `bytes`, backed by real memory from the start (a machine without room is an
/// error here, never a SIGBUS later), mode 0600, sealed against shrinking and growing. `name` shows
/// up in /proc only.
[[nodiscard]] Expected<UniqueFd> create_memory(const std::string& name, std::size_t bytes,
                                               Pages pages = Pages::usual);

/// The same memory, but the descriptor allows no writing and no writable mapping: for the
/// inspector.
[[nodiscard]] Expected<UniqueFd> reopen_read_only(int fd);

enum class Access : std::uint8_t { read_only, read_write };

/// A mapping of a memfd, unmapped by the destructor. The memory lives as long as any process has it
/// open or mapped.
class MappedMemory {
 public:
  MappedMemory() = default;

  /// Maps all of `fd` after checking that it has `bytes` bytes and is sealed; `name` is for the
  /// error text.
  [[nodiscard]] static Expected<MappedMemory> map(int fd, std::size_t bytes, Access access,
                                                  const std::string& name);

  /// Maps every page now, so that the first access of each does not fault.
  void populate() const;
  /// Asks for huge pages when the memory is first touched. If there are none, that is no error.
  void prefer_huge_pages() const;
  /// Forked children get no copy of this mapping: they must not write to the pool as their parent.
  void hide_from_children() const;

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t size() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
  Access access_ = Access::read_only;
};

}  // namespace kvhive
