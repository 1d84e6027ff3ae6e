#pragma once
// Copies what is made on the host into device memory, in pieces.

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "base/expected.hpp"
#include "device/device.hpp"
#include "device/device_memory.hpp"
#include "models/safetensors.hpp"

namespace kvhive {

/// Uploads through two pieces of page-locked memory in turn: one is filled while the other is
/// copied to the device.
class Uploader {
 public:
  /// \param device  outlives this
  [[nodiscard]] static Expected<Uploader> create(Device& device);

  /// \param fill  fill(piece, first) writes the upload's bytes from offset `first` on into `piece`;
  ///              `first` is a multiple of 4
  [[nodiscard]] Expected<void> put(
      std::byte* to, std::size_t bytes,
      const std::function<void(std::span<std::byte>, std::size_t)>& fill);
  /// The same of bytes that are there already.
  [[nodiscard]] Expected<void> put(std::byte* to, std::span<const std::byte> bytes);
  /// The same of a tensor's elements, as elements of this type.
  [[nodiscard]] Expected<void> put(std::byte* to, const TensorView& tensor, Dtype dtype);

  /// Waits for all copies. Call it also after a failure, before what they read is freed.
  [[nodiscard]] Expected<void> finish();

 private:
  struct Piece {
    StagingBuffer memory;
    OrderedStream stream;
  };

  explicit Uploader(Device& device) : device_(device) {}

  Device& device_;
  std::array<Piece, 2> pieces_;
  std::size_t next_ = 0;
};

}  // namespace kvhive
