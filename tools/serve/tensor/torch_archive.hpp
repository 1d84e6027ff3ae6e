#pragma once
// The archive that torch.save() writes: a ZIP file whose entries are stored, not compressed, all in
// one folder: data.pkl, byteorder, data/0 and others. libzip reads it in place.
//
// Source: pytorch, caffe2/serialize/inline_container.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/expected.hpp"

struct zip;

namespace kvhive {

/// Errors' texts go on behind the name of what was read.
class TorchArchive {
 public:
  /// \param bytes  outlive the object
  [[nodiscard]] static Expected<TorchArchive> open(std::span<const std::byte> bytes);

  bool has(const std::string& name) const;
  /// An entry's bytes. What is larger than `most` is refused before it is read.
  [[nodiscard]] Expected<std::vector<std::byte>> read(const std::string& name,
                                                      std::uint64_t most) const;

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  TorchArchive(std::unique_ptr<zip, Close> archive, std::string folder)
      : archive_(std::move(archive)), folder_(std::move(folder)) {}
  std::int64_t place_of(const std::string& name) const;

  std::unique_ptr<zip, Close> archive_;
  std::string folder_;  ///< "archive/"
};

}  // namespace kvhive
