#include "tests/serve/tensor/saved_tensor.hpp"

#include <openssl/evp.h>
#include <zip.h>

#include "base/check.hpp"
#include "tools/serve/tensor/base64.hpp"

namespace kvhive::testing {
namespace {

std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

std::string number(std::uint64_t value) {
  if (value < 1u << 8) return "K" + little_endian(value, 1);
  if (value < 1u << 16) return "M" + little_endian(value, 2);
  if (value < 1u << 31) return "J" + little_endian(value, 4);
  return std::string("\x8a\x08") + little_endian(value, 8);
}

std::string text(const std::string& value) { return "X" + little_endian(value.size(), 4) + value; }

std::string tuple(const std::vector<std::uint64_t>& numbers) {
  std::string all = "(";
  for (const std::uint64_t each : numbers) all += number(each);
  return all + "t";
}

}  // namespace

std::string SavedTensor::pickle() const {
  return "\x80\x02" + std::string("ctorch._utils\n_rebuild_tensor_v2\n((") + text("storage") +
         "ctorch\n" + type + "\n" + text("0") + text("cpu") + number(storage_size) + "tQ" +
         number(offset) + tuple(sizes) + tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)R" +
         "tR.";
}

std::string zipped(const std::vector<std::pair<std::string, std::string>>& entries,
                   Compression compression) {
  zip_source_t* const target = zip_source_buffer_create(nullptr, 0, 0, nullptr);
  zip_source_keep(target);
  zip_t* const archive = zip_open_from_source(target, ZIP_TRUNCATE, nullptr);
  KV_CHECK(archive != nullptr);
  for (const auto& [name, content] : entries) {
    zip_source_t* const source = zip_source_buffer(archive, content.data(), content.size(), 0);
    const std::int64_t place = zip_file_add(archive, name.c_str(), source, 0);
    KV_CHECK(place >= 0, name);
    const int method = compression == Compression::stored ? ZIP_CM_STORE : ZIP_CM_DEFLATE;
    KV_CHECK(zip_set_file_compression(archive, static_cast<std::uint64_t>(place), method, 0) == 0);
  }
  KV_CHECK(zip_close(archive) == 0);
  zip_stat_t stat;
  KV_CHECK(zip_source_stat(target, &stat) == 0 && zip_source_open(target) == 0);
  std::string bytes(stat.size, '\0');
  KV_CHECK(zip_source_read(target, bytes.data(), bytes.size()) ==
           static_cast<std::int64_t>(bytes.size()));
  zip_source_close(target);
  zip_source_free(target);
  return bytes;
}

std::string archive_of(const std::string& pickle, const std::string& values,
                       const std::string& byte_order) {
  return zipped({{"archive/data.pkl", pickle},
                 {"archive/byteorder", byte_order},
                 {"archive/data/0", values},
                 {"archive/version", "3\n"}});
}

std::string base64_of(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL ends it with a zero
  const int made = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(made));
  return text;
}

std::string bytes_of_base64(std::string_view text) {
  const auto bytes = decode_base64(text).value();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string saved_rows(std::span<const float> values, std::uint64_t width) {
  const SavedTensor tensor{.storage_size = values.size(),
                           .sizes = {values.size() / width, width},
                           .strides = {width, 1}};
  return base64_of(archive_of(tensor.pickle(),
                              {reinterpret_cast<const char*>(values.data()), values.size_bytes()}));
}

}  // namespace kvhive::testing
