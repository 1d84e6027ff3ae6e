#include "models/quantized_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/quantization/scale_grid.hpp"

namespace kvhive {
namespace {

using Kind = Quantization::Kind;
using Shape = std::vector<std::int64_t>;

constexpr std::uint8_t kMiddle = 128;  // of codes of eight bits
constexpr std::int32_t kNoGroup = -1;

bool lies_by_columns(const Quantization& how) {
  return how.kind == Kind::gptq || how.kind == Kind::awq;
}

/// Where the parts of a matrix lie.
struct Names {
  std::string codes, scales, zeros, groups;
};

Names names_of(const SafetensorsDirectory& files, const ModelTensor& listed,
               const Quantization& how) {
  const auto& name = listed.name;
  switch (how.kind) {
    case Kind::gptq:
      return {name + ".qweight", name + ".scales", name + ".qzeros", name + ".g_idx"};
    case Kind::awq: return {name + ".qweight", name + ".scales", name + ".qzeros", {}};
    case Kind::packed:
      return {name + ".weight_packed", name + ".weight_scale", name + ".weight_zero_point",
              name + ".weight_g_idx"};
    default: break;
  }
  const bool is_inverse = files.entry(name + ".weight_scale_inv") != nullptr;
  return {listed.weight_name(),
          name + (is_inverse ? ".weight_scale_inv" : ".weight_scale"),
          name + ".weight_zero_point",
          {}};
}

/// What the files must have as codes.
struct CodeForm {
  CodeKind kind = CodeKind::e4m3;
  CodeOrder order = CodeOrder::rows;
  const char* dtype = "I32";
  Shape shape;
};

std::int64_t parts(std::int64_t whole, std::int64_t part) { return (whole - 1) / part + 1; }

CodeForm form_of(const ModelTensor& listed, const Quantization& how) {
  const std::int64_t N = listed.rows, K = listed.columns, in_word = 32 / how.bits;
  const CodeKind integers = how.bits == 4 ? CodeKind::uint4 : CodeKind::uint8;
  switch (how.kind) {
    case Kind::packed: return {integers, CodeOrder::rows, "I32", {N, parts(K, in_word)}};
    case Kind::int8: return {CodeKind::int8, CodeOrder::rows, "I8", {N, K}};
    case Kind::gptq: return {integers, CodeOrder::gptq, "I32", {parts(K, in_word), N}};
    case Kind::awq: return {integers, CodeOrder::awq, "I32", {K, parts(N, in_word)}};
    default: return {CodeKind::e4m3, CodeOrder::rows, "F8_E4M3", {N, K}};
  }
}

/// Which of a row's G scales each column has, where that is not the one of its place.
Expected<std::vector<std::int32_t>> read_groups(const SafetensorsDirectory& files,
                                                const std::string& name, const TensorEntry& entry,
                                                std::int32_t K, std::int32_t together,
                                                bool may_be_unset) {
  const std::int32_t G = (K - 1) / together + 1;
  std::vector<std::int32_t> groups(K);
  bool are_in_order = true;
  for (std::int32_t k = 0; k < K; ++k) {
    const auto group = static_cast<std::int32_t>(word_at(entry.bytes.data(), k));
    if (group == kNoGroup && may_be_unset) return std::vector<std::int32_t>();
    if (group < 0 || group >= G)
      return failure(Errc::bad_format, files.where(name) + " has the group " +
                                           std::to_string(group) + ", expected 0.." +
                                           std::to_string(G - 1) +
                                           "; group_size in quantization_config is " +
                                           std::to_string(together) + ", or fetch the file again");
    groups[k] = group;
    are_in_order = are_in_order && group == k / together;
  }
  if (are_in_order) groups.clear();
  return groups;
}

/// \pre the tensor is there
Expected<std::vector<float>> read_values(const SafetensorsDirectory& files,
                                         const std::string& name) {
  const auto found = files.find(name, files.entry(name)->shape);
  if (!found) return forward_error(found);
  std::vector<float> values(found->bytes.size() / bytes_of(found->dtype));
  read_floats(*found, 0, values);
  return values;
}

/// Reads the parts of one matrix.
class CodedReader {
 public:
  CodedReader(const SafetensorsDirectory& files, const ModelTensor& listed, const Quantization& how)
      : files_(files), listed_(listed), how_(how), names_(names_of(files, listed, how)) {}

  Expected<CodedMatrix> read() {
    if (auto sizes = check_sizes(); !sizes) return forward_error(sizes);
    const CodeForm form = form_of(listed_, how_);
    auto codes = find(names_.codes, form.dtype, form.shape);
    if (!codes) return forward_error(codes);
    matrix_.kind = form.kind;
    matrix_.order = form.order;
    matrix_.N = listed_.rows;
    matrix_.K = listed_.columns;
    matrix_.bytes = (*codes)->bytes;
    if (form.kind != CodeKind::e4m3)
      matrix_.zero = form.kind == CodeKind::uint4 ? kMiddle / 16 : kMiddle;
    if (auto scales = read_scales(); !scales) return forward_error(scales);
    if (auto zeros = read_zeros(); !zeros) return forward_error(zeros);
    if (auto groups = read_order(); !groups) return forward_error(groups);
    return std::move(matrix_);
  }

 private:
  /// Sizes that fill whole words, where the order asks for it, and are those that the file says.
  Expected<void> check_sizes() const {
    const std::int32_t in_word = 32 / how_.bits;
    const bool are_rows_cut = lies_by_columns(how_) && listed_.rows % in_word != 0;
    const bool are_columns_cut = how_.kind == Kind::gptq && listed_.columns % in_word != 0;
    if (are_rows_cut || are_columns_cut)
      return failure(Errc::unsupported, files_.where(names_.codes) + ": a matrix of " +
                                            std::to_string(listed_.rows) + " x " +
                                            std::to_string(listed_.columns) +
                                            ", expected multiples of " + std::to_string(in_word));
    const std::string said = listed_.name + ".weight_shape";
    const TensorEntry* const entry = how_.kind == Kind::packed ? files_.entry(said) : nullptr;
    if (entry == nullptr || (entry->dtype != "I64" && entry->dtype != "I32")) return {};
    const std::size_t words = entry->dtype == "I64" ? 2 : 1;  // of a number
    const auto number = [&](std::size_t i) { return word_at(entry->bytes.data(), i * words); };
    if (entry->bytes.size() == 2 * words * sizeof(std::uint32_t) &&
        (number(0) != std::uint32_t(listed_.rows) || number(1) != std::uint32_t(listed_.columns)))
      return failure(Errc::bad_format, files_.where(said) + " says " +
                                           shape_text(Shape{number(0), number(1)}) + ", expected " +
                                           shape_text(Shape{listed_.rows, listed_.columns}) +
                                           " from config.json");
    return {};
  }

  /// A tensor that must be there.
  Expected<const TensorEntry*> find(const std::string& name) const {
    const TensorEntry* const entry = files_.entry(name);
    if (entry != nullptr) return entry;
    if (how_.kind == Kind::fp8)
      return failure(Errc::not_found, files_.where(names_.codes) +
                                          " is F8_E4M3, but there is neither " + listed_.name +
                                          ".weight_scale nor .weight_scale_inv; fetch the file "
                                          "again");
    return failure(Errc::not_found, files_.where(names_.codes) + " is there, but " + name +
                                        " is not; fetch the file again");
  }

  Expected<const TensorEntry*> find(const std::string& name, const std::string& dtype,
                                    const Shape& shape) const {
    auto entry = find(name);
    if (!entry) return entry;
    if ((*entry)->dtype != dtype)
      return failure(Errc::bad_format, files_.where(name) + " has dtype " + (*entry)->dtype +
                                           ", expected " + dtype + " from config.json");
    if ((*entry)->shape != shape)
      return failure(Errc::bad_format, files_.where(name) + " has shape " +
                                           shape_text((*entry)->shape) + ", expected " +
                                           shape_text(shape) + " from config.json");
    return entry;
  }

  Expected<void> read_scales() {
    const auto found = find(names_.scales);
    if (!found) return forward_error(found);
    Shape shape = (*found)->shape;
    if (lies_by_columns(how_) && shape.size() == 2) std::swap(shape[0], shape[1]);
    auto grid = scale_grid(how_, listed_.rows, listed_.columns, shape);
    if (!grid)
      return failure(Errc::unsupported, files_.where(names_.scales) + " has shape " +
                                            shape_text((*found)->shape) + ", expected " +
                                            wanted_scales() + ", as quantization_config says");
    auto scales = how_.kind == Kind::fp8 ? read_scale_values(files_, names_.scales)
                                         : read_finite(names_.scales);
    if (!scales) return forward_error(scales);
    if (auto fit = check_values(*scales); !fit) return fit;
    grid->scales = lies_by_columns(how_) ? turned(*scales) : std::move(*scales);
    matrix_.grid = std::move(*grid);
    return {};
  }

  /// The shape that scales must have, in words.
  std::string wanted_scales() const {
    using ScaleOf = Quantization::ScaleOf;
    const std::int64_t N = listed_.rows, K = listed_.columns;
    if (how_.block_rows > 0)
      return shape_text(Shape{parts(N, how_.block_rows), parts(K, how_.block_columns)}) +
             ", one scale for each block of " + std::to_string(how_.block_rows) + " x " +
             std::to_string(how_.block_columns);
    const std::int64_t G = how_.group > 0 ? parts(K, how_.group) : 1;
    const std::string shape = shape_text(lies_by_columns(how_) ? Shape{G, N} : Shape{N, G});
    if (how_.group > 0)
      return shape + ", one scale for each " + std::to_string(how_.group) + " columns of a row";
    if (how_.scale_of == ScaleOf::row) return shape + ", one scale for each row";
    return how_.scale_of == ScaleOf::matrix ? "one scale" : shape + " or one scale";
  }

  /// Scales with which all codes stand for finite values, of bf16, too: they are less than 512.
  Expected<void> check_values(const std::vector<float>& scales) const {
    for (const float scale : scales)
      if (std::abs(scale) >= 0x1p119f)
        return failure(Errc::bad_format, files_.where(names_.scales) + " has a scale of " +
                                             std::to_string(scale) +
                                             ", expected less than 2^119, so that weights are "
                                             "finite; fetch the file again");
    return {};
  }

  /// The values [G, N] of a tensor as [N, G].
  template <class T>
  std::vector<T> turned(const std::vector<T>& values) const {
    const std::size_t N = listed_.rows, G = values.size() / N;
    std::vector<T> result(values.size());
    for (std::size_t n = 0; n < N; ++n)
      for (std::size_t g = 0; g < G; ++g) result[n * G + g] = values[g * N + n];
    return result;
  }

  Expected<std::vector<float>> read_finite(const std::string& name) const {
    auto values = read_values(files_, name);
    if (!values) return values;
    for (const float value : *values)
      if (!std::isfinite(value))
        return failure(Errc::bad_format, files_.where(name) + " has a scale of " +
                                             std::to_string(value) + "; fetch the file again");
    return values;
  }

  /// Where zeros may be left out, the middle of the codes is meant; where none are expected, they
  /// must be that.
  Expected<void> read_zeros() {
    if (how_.kind == Kind::fp8) return {};
    if (!lies_by_columns(how_) && files_.entry(names_.zeros) == nullptr) return {};
    const auto entry = find(names_.zeros);
    if (!entry) return forward_error(entry);
    const bool are_packed =
        lies_by_columns(how_) ||
        (how_.kind == Kind::packed && matrix_.grid.block_rows == 1 && (*entry)->dtype != "I8");
    auto read = are_packed ? read_packed_zeros() : read_bytes_of_zeros();
    if (!read || how_.has_zeros) return read;
    const auto differs = std::ranges::find_if(
        matrix_.zeros, [&](std::uint8_t zero) { return zero != matrix_.zero; });
    if (differs != matrix_.zeros.end())
      return failure(Errc::bad_format, files_.where(names_.zeros) +
                                           " has a zero that is not in the middle, but "
                                           "quantization_config does not say symmetric = "
                                           "false; one of them is wrong");
    matrix_.zeros.clear();
    return {};
  }

  Expected<void> read_packed_zeros() {
    const std::int64_t N = listed_.rows, in_word = 32 / how_.bits;
    const std::int64_t G = matrix_.grid.across(listed_.columns);
    const bool by_columns = lies_by_columns(how_);
    const Shape shape = by_columns ? Shape{G, parts(N, in_word)} : Shape{parts(N, in_word), G};
    const auto found = find(names_.zeros, "I32", shape);
    if (!found) return forward_error(found);
    matrix_.zeros.resize(N * G);
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t g = 0; g < G; ++g) {
        const std::int64_t word = n / in_word;
        const std::int64_t at = by_columns ? g * parts(N, in_word) + word : word * G + g;
        matrix_.zeros[n * G + g] = zero_of(word_at((*found)->bytes.data(), at), n % in_word);
      }
    return {};
  }

  /// The zero of the row that is the word's so many-th.
  std::uint8_t zero_of(std::uint32_t word, std::int64_t row) const {
    const auto in_order = static_cast<std::int32_t>(row);
    const std::int32_t place = how_.kind == Kind::awq ? awq_place(in_order) : in_order;
    const std::uint32_t stored = word >> (place * how_.bits);
    return static_cast<std::uint8_t>((stored + (how_.lacks_one ? 1 : 0)) & ((1u << how_.bits) - 1));
  }

  /// One with a sign beside each scale.
  Expected<void> read_bytes_of_zeros() {
    const auto found = find(names_.zeros, "I8", files_.entry(names_.scales)->shape);
    if (!found) return forward_error(found);
    for (const std::byte byte : (*found)->bytes) {
      const auto with_sign = static_cast<std::int8_t>(byte);
      matrix_.zeros.push_back(static_cast<std::uint8_t>(with_sign + matrix_.zero));
    }
    return {};
  }

  Expected<void> read_order() {
    if (names_.groups.empty()) return {};
    if (!how_.is_reordered && files_.entry(names_.groups) == nullptr) return {};
    const auto found = find(names_.groups, "I32", {listed_.columns});
    if (!found) return forward_error(found);
    auto groups = read_groups(files_, names_.groups, **found, listed_.columns,
                              matrix_.grid.block_columns, how_.kind == Kind::packed);
    if (!groups) return forward_error(groups);
    if (!groups->empty() && listed_.columns % 32 != 0)
      return failure(Errc::unsupported, files_.where(names_.groups) + ": " +
                                            std::to_string(listed_.columns) +
                                            " columns, expected a multiple of 32");
    matrix_.groups = std::move(*groups);
    return {};
  }

  const SafetensorsDirectory& files_;
  const ModelTensor& listed_;
  const Quantization& how_;
  Names names_;
  CodedMatrix matrix_;
};

}  // namespace

bool is_quantized(const SafetensorsDirectory& files, const ModelTensor& listed,
                  const Quantization& how) {
  if (how.kind == Kind::none || listed.is_vector() || listed.packed) return false;
  const std::string codes = names_of(files, listed, how).codes;
  const TensorEntry* const entry = files.entry(codes);
  if (entry == nullptr) return false;
  return codes != listed.weight_name() || entry->dtype == form_of(listed, how).dtype;
}

Expected<void> check_codes_are_used(const SafetensorsDirectory& files, const ModelConfig& config,
                                    const std::vector<ModelTensor>& tensors) {
  const Quantization& how = config.quantization;
  const ModelTensor lm_head{.name = "lm_head", .rows = 1, .columns = 1};
  if (config.tie_word_embeddings && is_quantized(files, lm_head, how))
    return failure(Errc::bad_format,
                   files.where(names_of(files, lm_head, how).codes) +
                       " is there, but config.json says tie_word_embeddings = true, so that it "
                       "would not be used; one of them is wrong");
  for (const ModelTensor& listed : tensors) {
    if (listed.is_vector() || is_quantized(files, listed, how)) continue;
    if (files.entry(listed.weight_name()) != nullptr) continue;
    for (const char* const codes : {".qweight", ".weight_packed"})
      if (files.entry(listed.name + codes) != nullptr)
        return failure(Errc::bad_format,
                       files.where(listed.name + codes) +
                           " is there, but quantization_config in config.json does not say so; "
                           "if there is a quantize_config.json, copy what it says there");
  }
  return {};
}

Expected<CodedMatrix> read_coded(const SafetensorsDirectory& files, const ModelTensor& listed,
                                 const Quantization& how) {
  return CodedReader(files, listed, how).read();
}

std::size_t coded_bytes_to_copy(const SafetensorsDirectory& files, const ModelTensor& listed,
                                const Quantization& how) {
  const Names names = names_of(files, listed, how);
  const TensorEntry* const scales = files.entry(names.scales);
  if (scales == nullptr) return 0;
  std::size_t count = 1;
  for (const std::int64_t size : scales->shape) count *= static_cast<std::size_t>(size);
  const bool has_zeros = how.has_zeros && files.entry(names.zeros) != nullptr;
  const TensorEntry* const order = names.groups.empty() ? nullptr : files.entry(names.groups);
  const std::size_t columns = listed.columns, order_bytes = columns * sizeof(std::int32_t);
  std::size_t groups = 0;
  if (order != nullptr && order->bytes.size() == order_bytes) {
    const auto read =
        read_groups(files, names.groups, *order, listed.columns,
                    how.group > 0 ? how.group : listed.columns, how.kind == Kind::packed);
    if (read && !read->empty()) groups = order_bytes;
  }
  return count * (sizeof(float) + (has_zeros ? 1 : 0)) + groups;
}

Expected<std::vector<float>> read_scale_values(const SafetensorsDirectory& files,
                                               const std::string& name) {
  auto values = read_values(files, name);
  if (!values) return values;
  for (const float value : *values)
    if (!std::isfinite(value) || value <= 0)
      return failure(Errc::bad_format, files.where(name) + " has a scale of " +
                                           std::to_string(value) +
                                           ", expected more than 0; fetch the file again");
  return values;
}

}  // namespace kvhive
