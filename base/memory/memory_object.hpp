#pragma once
// Shared memory: a sealed memfd and its mapping. A memfd has no name in the file system, so nothing
// is left in /dev/shm, and no process can take its name first. The seal prevents a process from
// shrinking it while others have it mapped. No other file catches Boost's exceptions.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/expected.hpp"
#include "base/memory/huge_pages.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

enum class Pages : std::uint8_t {
  usual,
  huge,  ///< as many huge pages as the kernel can form in a time that small ones would take, and
         ///< some more. If there are none, that is no error
};

/// Creates a memfd of `bytes` bytes, mode 0600, sealed against shrinking and growing. All its
/// memory is allocated now: if the machine has too little, that is an error here, and not a SIGBUS
/// later. `name` is only shown in /proc.
/// \param goes_on  asked several times a second, since the kernel clears about 3 GiB a second
/// \return  no descriptor if it did not go on
[[nodiscard]] Expected<UniqueFd> create_memory(const std::string& name, std::size_t bytes,
                                               Pages pages = Pages::usual,
                                               const GoesOn& goes_on = {});

/// The same in steps, for a caller that has other work to do in between: makes an empty memfd,
/// allocates its bytes from..to, seals it. `whole` is the size that it will have, for the error
/// text.
[[nodiscard]] Expected<UniqueFd> open_memory(const std::string& name);
[[nodiscard]] Expected<void> allocate_memory(const UniqueFd& fd, std::size_t from, std::size_t to,
                                             std::size_t whole, const std::string& name);
[[nodiscard]] Expected<void> seal_memory(const UniqueFd& fd, const std::string& name);

/// The same as create_memory(), but the file has no memory yet, and it can be sealed further. A
/// page gets memory when it is first written, and it counts as the memory of the process that
/// writes it.
[[nodiscard]] Expected<UniqueFd> create_empty_memory(const std::string& name, std::size_t bytes);
/// From now on the file is written only through mappings that exist already: nobody can write(),
/// punch holes, or map it for writing any more. Needs Linux 5.1.
[[nodiscard]] Expected<void> seal_against_new_writers(int fd, const std::string& name);
/// Never waits, even if a process keeps the file's lock.
[[nodiscard]] bool is_sealed_against_new_writers(int fd);

/// Frees the bytes from..to of a memfd; they read as zero from then on. If the system cannot, they
/// are freed when the last descriptor is closed.
void free_memory(const UniqueFd& fd, std::size_t from, std::size_t to);

/// A new descriptor of the same memory that allows no writing and no writable mapping.
[[nodiscard]] Expected<UniqueFd> reopen_read_only(int fd);

enum class Access : std::uint8_t { read_only, read_write };

/// A mapping of a memfd, left out of core dumps. The destructor unmaps it. The memory lives as long
/// as any process has it open or mapped.
class MappedMemory {
 public:
  MappedMemory() = default;

  /// Maps all of `fd` after checking that it has `bytes` bytes and cannot be resized; `name` is for
  /// the error text.
  [[nodiscard]] static Expected<MappedMemory> map(int fd, std::size_t bytes, Access access,
                                                  const std::string& name);

  /// Maps every page now, so that the first access to a page causes no page fault.
  void populate() const;
  /// Asks for huge pages when the memory is first touched. If there are none, that is no error.
  void prefer_huge_pages() const;
  /// Keeps the memory out of swap, as long as the mapping lives. Error: more than the limit of
  /// locked memory allows (ulimit -l).
  [[nodiscard]] Expected<void> lock() const;
  /// Forked children do not get this mapping: they must not write to the pool in their parent's
  /// name.
  void hide_from_children() const;

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t size() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
  Access access_ = Access::read_only;
};

}  // namespace kvhive
