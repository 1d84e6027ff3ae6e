#pragma once
// A file mapped read-only and shared: N engines of one host that load the same weights hold one
// copy of them, the page cache's.

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/expected.hpp"

namespace kvhive {

/// Move-only. The file must not be truncated while mapped: reading past its new end is a SIGBUS.
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
