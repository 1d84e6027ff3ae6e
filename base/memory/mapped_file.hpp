#pragma once
// A file mapped read-only and shared. All engines of a host that load the same weights share one
// copy of them, the one in the page cache.

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/expected.hpp"

namespace kvhive {

/// Move-only. The file must not be truncated while it is mapped: a read past its new end raises
/// SIGBUS.
class MappedFile {
 public:
  [[nodiscard]] static Expected<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace kvhive
