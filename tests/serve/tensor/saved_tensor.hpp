#pragma once
// What torch.save() writes of one tensor, also with numbers and parts that it never writes.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvhive::testing {

struct SavedTensor {
  std::string type = "FloatStorage";
  std::uint64_t storage_size = 0;  ///< values
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> sizes, strides;

  /// As data.pkl.
  std::string pickle() const;
};

enum class Compression : std::uint8_t { stored, deflated };

/// A ZIP file: names and contents.
std::string zipped(const std::vector<std::pair<std::string, std::string>>& entries,
                   Compression compression = Compression::stored);

/// The whole archive.
std::string archive_of(const std::string& pickle, const std::string& values,
                       const std::string& byte_order = "little");

std::string base64_of(std::string_view bytes);
std::string bytes_of_base64(std::string_view text);

/// Rows of float32 as a request has them: in base64.
std::string saved_rows(std::span<const float> values, std::uint64_t width);

}  // namespace kvhive::testing
