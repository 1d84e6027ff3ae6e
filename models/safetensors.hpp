#pragma once
// Weights in the safetensors format: 8 bytes of header length (little endian), a JSON header, then
// the tensors' bytes. The files are read in place, in a shared mapping. Every number in a file is
// checked before it is used.
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
#include "base/memory/mapped_file.hpp"
#include "config/dtype.hpp"

namespace kvhive {

/// One tensor, row-major. The bytes belong to its SafetensorsDirectory. They may not be aligned to
/// the size of an element, so they must be read with memcpy.
struct TensorView {
  Dtype dtype = Dtype::f32;
  std::span<const std::byte> bytes;
};

/// Reads out.size() values of a tensor, from index `first` on, and converts them to float.
void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out);

/// A tensor as a file's header describes it. Its dtype may be one that kvhive does not compute
/// with.
struct TensorEntry {
  std::string dtype;  ///< the format's spelling: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Parses and checks the bytes of a whole file. The bytes of every returned entry lie inside
/// `file`.
/// \param name  the file's name in error texts
[[nodiscard]] Expected<std::map<std::string, TensorEntry>> parse_safetensors(
    std::span<const std::byte> file, const std::string& name);

/// Prints a shape: "[128, 64]".
std::string shape_text(std::span<const std::int64_t> shape);

/// The tensors of a model directory: model.safetensors, or else the shards that
/// model.safetensors.index.json names. Those of a model that takes images, too, have the names of
/// its text part alone: "language_model.model.norm.weight", as published, and
/// "model.language_model.norm.weight", as transformers writes it today, are "model.norm.weight".
class SafetensorsDirectory {
 public:
  [[nodiscard]] static Expected<SafetensorsDirectory> open(const std::filesystem::path& directory);
  /// One file, whatever its name. In the names of an adapter's tensors, too, the text part is all
  /// there is: behind "base_model.model.".
  [[nodiscard]] static Expected<SafetensorsDirectory> open_file(const std::filesystem::path& file);

  /// Of all tensors.
  std::vector<std::string> names() const;

  /// Returns the tensor. Errors: it does not exist, has another shape, or a dtype that kvhive does
  /// not compute with.
  [[nodiscard]] Expected<TensorView> find(const std::string& tensor,
                                          std::span<const std::int64_t> expected_shape) const;

  /// The tensor as its file describes it, whatever its dtype; null: there is none.
  const TensorEntry* entry(const std::string& tensor) const;

  /// "directory/file: tensor NAME", for error texts.
  std::string where(const std::string& tensor) const;

 private:
  struct Located {
    TensorEntry entry;
    std::string file;
  };

  [[nodiscard]] Expected<std::size_t> add_file(const std::filesystem::path& path);
  [[nodiscard]] Expected<std::size_t> add_shards(const std::filesystem::path& index_path);
  void name_text_part(std::string_view before);

  std::vector<MappedFile> files_;
  std::map<std::string, Located> tensors_;
  std::string directory_;
};

}  // namespace kvhive
