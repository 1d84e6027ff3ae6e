#include "models/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/json_file.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound

constexpr std::pair<std::string_view, std::uint64_t> kElementBytes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8},
};

std::optional<std::uint64_t> element_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kElementBytes)
    if (name == dtype) return bytes;
  return std::nullopt;
}

std::optional<Dtype> float_dtype(std::string_view name) {
  if (name == "F32") return Dtype::f32;
  if (name == "BF16") return Dtype::bf16;
  if (name == "F16") return Dtype::f16;
  return std::nullopt;
}

tl::unexpected<Error> malformed(const std::string& where, const std::string& what) {
  return failure(Errc::bad_format, where + ": " + what + "; fetch the file again");
}

std::optional<std::uint64_t> unsigned_of(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

/// Reads a shape, and returns the bytes of a tensor of this shape. Nothing if the number overflows,
/// or `list` is not a list of sizes.
std::optional<std::uint64_t> read_shape(const nlohmann::json& list, std::uint64_t element,
                                        std::vector<std::int64_t>& shape) {
  if (!list.is_array()) return std::nullopt;
  std::uint64_t bytes = element;
  for (const auto& item : list) {
    const auto size = unsigned_of(item);
    if (!size || *size > INT64_MAX || __builtin_mul_overflow(bytes, *size, &bytes))
      return std::nullopt;
    shape.push_back(static_cast<std::int64_t>(*size));
  }
  return bytes;
}

/// The header's JSON object and the byte buffer behind it.
struct Parts {
  nlohmann::json header;
  std::span<const std::byte> buffer;
};

Expected<Parts> split_file(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kLengthBytes)
    return malformed(name,
                     std::to_string(file.size()) + " bytes, expected at least 8 of header length");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes)
    return malformed(name, "header length " + std::to_string(header_bytes) + ", but the file has " +
                               std::to_string(file.size() - kLengthBytes) + " bytes after it");
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  auto header = parse_json_object({text, header_bytes});
  if (!header) return malformed(name, "the header is not a JSON object");
  return Parts{std::move(*header), file.subspan(kLengthBytes + header_bytes)};
}

Expected<TensorEntry> read_entry(const nlohmann::json& value, std::span<const std::byte> buffer,
                                 const std::string& where) {
  if (!value.is_object()) return malformed(where, "header entry is not an object");
  const JsonFields fields(value, where);
  TensorEntry entry;
  auto dtype = fields.text("dtype");
  if (!dtype) return forward_error(dtype);
  entry.dtype = std::move(*dtype);
  const auto element = element_bytes(entry.dtype);
  if (!element) return fields.wrong("dtype", "a dtype of the safetensors format");
  if (!value.contains("shape")) return malformed(where, "shape is missing");
  const auto bytes = read_shape(value["shape"], *element, entry.shape);
  if (!bytes) return fields.wrong("shape", "a list of sizes whose product fits 64 bits");

  const auto offsets = fields.array("data_offsets");
  if (!offsets) return forward_error(offsets);
  if ((*offsets)->size() != 2) return fields.wrong("data_offsets", "[begin, end]");
  const auto begin = unsigned_of((**offsets)[0]);
  const auto end = unsigned_of((**offsets)[1]);
  if (!begin || !end || *begin > *end)
    return fields.wrong("data_offsets", "[begin, end], begin <= end");
  if (*end > buffer.size())
    return malformed(where, "ends at byte " + std::to_string(*end) +
                                " of the data, but the file has only " +
                                std::to_string(buffer.size()) + " bytes of data");
  if (*end - *begin != *bytes)
    return malformed(where, entry.dtype + " " + shape_text(entry.shape) + " needs " +
                                std::to_string(*bytes) + " bytes, data_offsets give " +
                                std::to_string(*end - *begin));
  entry.bytes = buffer.subspan(*begin, *bytes);
  return entry;
}

/// Checks that the tensors cover the buffer without overlap or hole. Empty tensors may lie between
/// any two others.
Expected<std::size_t> check_coverage(const std::map<std::string, TensorEntry>& tensors,
                                     std::span<const std::byte> buffer, const std::string& name) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const auto& [tensor, entry] : tensors)
    if (!entry.bytes.empty())
      ranges.emplace_back(entry.bytes.data() - buffer.data(), entry.bytes.size());
  std::sort(ranges.begin(), ranges.end());
  std::size_t covered = 0;
  for (const auto& [begin, bytes] : ranges) {
    if (begin != covered)
      return malformed(name, "tensors overlap or leave a hole at byte " + std::to_string(covered) +
                                 " of the data");
    covered += bytes;
  }
  if (covered != buffer.size())
    return malformed(name, "the tensors end at byte " + std::to_string(covered) + " of " +
                               std::to_string(buffer.size()) + " bytes of data");
  return covered;
}

/// Whether a shard's name is a plain file name: an index must not refer to files outside its
/// directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// A name in a file may be anything: what steers a terminal is not shown.
std::string printable(std::string name) {
  for (char& letter : name)
    if (letter < ' ' || letter == 127) letter = '?';
  return name;
}

template <class Bits, class Convert>
void convert_floats(const std::byte* from, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * sizeof(Bits), sizeof(Bits));
    out[i] = convert(bits);
  }
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

Expected<std::map<std::string, TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                               const std::string& name) {
  auto parts = split_file(file, name);
  if (!parts) return forward_error(parts);
  std::map<std::string, TensorEntry> tensors;
  for (const auto& [tensor, value] : parts->header.items()) {
    if (tensor == "__metadata__") continue;
    auto entry = read_entry(value, parts->buffer, name + ": tensor " + shown(tensor));
    if (!entry) return forward_error(entry);
    tensors.emplace(tensor, std::move(*entry));
  }
  auto covered = check_coverage(tensors, parts->buffer, name);
  if (!covered) return forward_error(covered);
  return tensors;
}

Expected<SafetensorsDirectory> SafetensorsDirectory::open(const std::filesystem::path& directory) {
  SafetensorsDirectory opened;
  opened.directory_ = directory.string();
  const auto single = directory / "model.safetensors";
  const auto index = directory / "model.safetensors.index.json";
  const bool sharded = !std::filesystem::exists(single) && std::filesystem::exists(index);
  auto tensors = sharded ? opened.add_shards(index) : opened.add_file(single);
  if (!tensors) return forward_error(tensors);
  opened.name_text_part("");
  return opened;
}

/// Gives the tensors of a multimodal model's text part the names that a model of text has.
/// \param before  what all their names begin with
void SafetensorsDirectory::name_text_part(std::string_view before) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
      {"model.language_model.", "model."}};
  std::map<std::string, Located> named;
  while (!tensors_.empty()) {
    auto tensor = tensors_.extract(tensors_.begin());
    std::string& name = tensor.key();
    for (const auto& [prefix, instead] : kNames)
      if (name.starts_with(before) && name.substr(before.size()).starts_with(prefix)) {
        name.replace(before.size(), prefix.size(), instead);
        break;
      }
    named.insert(std::move(tensor));
  }
  tensors_ = std::move(named);
}

Expected<SafetensorsDirectory> SafetensorsDirectory::open_file(const std::filesystem::path& file) {
  SafetensorsDirectory opened;
  opened.directory_ = file.parent_path().string();
  if (auto tensors = opened.add_file(file); !tensors) return forward_error(tensors);
  opened.name_text_part("base_model.model.");
  return opened;
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, located] : tensors_) names.push_back(name);
  return names;
}

Expected<std::size_t> SafetensorsDirectory::add_file(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return forward_error(file);
  auto tensors = parse_safetensors(file->bytes(), path.string());
  if (!tensors) return forward_error(tensors);
  const auto count = tensors->size();
  for (auto& [name, entry] : *tensors)
    tensors_.insert_or_assign(name, Located{std::move(entry), path.filename().string()});
  files_.push_back(std::move(*file));
  return count;
}

Expected<std::size_t> SafetensorsDirectory::add_shards(const std::filesystem::path& index_path) {
  const auto index = read_json_object(index_path);
  if (!index) return forward_error(index);
  const auto where = index_path.string();
  if (!index->contains("weight_map") || !index->at("weight_map").is_object())
    return malformed(where, "weight_map is missing or not an object");
  const auto& weight_map = index->at("weight_map");

  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>()))
      return malformed(where, "weight_map[" + shown(tensor) + "] = " + shown(shard) +
                                  ", expected the name of a file beside the index");
    shards.insert(shard.get<std::string>());
  }
  for (const auto& shard : shards) {
    auto added = add_file(index_path.parent_path() / shard);
    if (!added) return added;
  }
  for (const auto& [tensor, shard] : weight_map.items()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.file != shard.get<std::string>())
      return malformed(where, "weight_map says tensor " + shown(tensor) + " is in " + shown(shard) +
                                  ", but it is not");
  }
  return tensors_.size();
}

const TensorEntry* SafetensorsDirectory::entry(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second.entry;
}

std::string SafetensorsDirectory::where(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  const std::string file = found == tensors_.end() ? "" : "/" + found->second.file;
  return directory_ + file + ": tensor " + printable(tensor);
}

Expected<TensorView> SafetensorsDirectory::find(
    const std::string& tensor, std::span<const std::int64_t> expected_shape) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end())
    return failure(Errc::not_found, directory_ + ": tensor " + tensor + " " +
                                        shape_text(expected_shape) +
                                        " is missing; config.json and the weights do not match");
  const auto& entry = found->second.entry;
  if (!std::ranges::equal(entry.shape, expected_shape))
    return failure(Errc::bad_format, where(tensor) + " has shape " + shape_text(entry.shape) +
                                         ", expected " + shape_text(expected_shape) +
                                         " from config.json");
  const auto dtype = float_dtype(entry.dtype);
  if (!dtype)
    return failure(Errc::unsupported, where(tensor) + " has dtype " + entry.dtype +
                                          ", expected F32, BF16 or F16; convert the model");
  return TensorView{*dtype, entry.bytes};
}

void read_floats(const TensorView& tensor, std::size_t first, std::span<float> out) {
  KV_CHECK((first + out.size()) * bytes_of(tensor.dtype) <= tensor.bytes.size(), first, out.size());
  const std::byte* from = tensor.bytes.data() + first * bytes_of(tensor.dtype);
  switch (tensor.dtype) {
    case Dtype::f32: return convert_floats<float>(from, out, [](float value) { return value; });
    case Dtype::bf16: return convert_floats<std::uint16_t>(from, out, float_of_bf16);
    case Dtype::f16: return convert_floats<std::uint16_t>(from, out, float_of_f16);
    default: KV_CHECK(false, int(tensor.dtype));  // SafetensorsDirectory returns no other dtype
  }
}

}  // namespace kvhive
