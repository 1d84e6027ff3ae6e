#pragma once
// Weights in the safetensors format: 8 bytes of header length (little endian), a JSON header, then
// the tensors' bytes. Read in place from a shared mapping; nothing in a file is trusted.
//
// Source: github.com/huggingface/safetensors, README.md "Format": the tensors cover the byte buffer
// without overlap or hole, and end where the file ends.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/mapped_file.hpp"
#include "config/dtype.hpp"

namespace kvhive {

/// One tensor, row-major. Borrowed from its SafetensorsDirectory. The bytes need not be aligned to
/// their element size: read them with memcpy.
struct TensorView {
  Dtype dtype = Dtype::f32;
  std::span<const std::byte> bytes;
};

/// A tensor as a file's header describes it; also those whose dtype kvhive does not compute with.
struct TensorEntry {
  std::string dtype;  ///< the format's spelling: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Checks a whole file image. Every entry's bytes lie inside `file`.
/// \param name  what error texts call the file
[[nodiscard]] Expected<std::map<std::string, TensorEntry>> parse_safetensors(
    std::span<const std::byte> file, const std::string& name);

/// "[128, 64]".
std::string shape_text(std::span<const std::int64_t> shape);

/// The tensors of a model directory: model.safetensors, or else the shards that
/// model.safetensors.index.json names.
class SafetensorsDirectory {
 public:
  [[nodiscard]] static Expected<SafetensorsDirectory> open(const std::filesystem::path& directory);

  /// The tensor if it exists, has this shape and a floating dtype kvhive computes with.
  [[nodiscard]] Expected<TensorView> find(const std::string& tensor,
                                          std::span<const std::int64_t> expected_shape) const;

 private:
  struct Located {
    TensorEntry entry;
    std::string file;
  };

  [[nodiscard]] Expected<std::size_t> add_file(const std::filesystem::path& path);
  [[nodiscard]] Expected<std::size_t> add_shards(const std::filesystem::path& index_path);

  std::vector<MappedFile> files_;
  std::map<std::string, Located> tensors_;
  std::string directory_;
};

}  // namespace kvhive
