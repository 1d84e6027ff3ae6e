#include "models/quantized_matrix.hpp"

#include <cmath>
#include <utility>

#include "models/quantization/scale_grid.hpp"

namespace kvhive {
namespace {

using Kind = Quantization::Kind;
using Shape = std::vector<std::int64_t>;

constexpr std::uint8_t kMiddle = 128;  // of codes of eight bits

/// Where the parts of a matrix lie.
struct Names {
  std::string codes, scales, zeros, groups;
};

Names names_of(const SafetensorsDirectory& files, const ModelTensor& listed,
               const Quantization& how) {
  const auto& name = listed.name;
  switch (how.kind) {
    case Kind::gptq:
    case Kind::awq: return {name + ".qweight", name + ".scales", name + ".qzeros", name + ".g_idx"};
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
    if (how_.has_zeros)
      if (auto zeros = read_zeros(); !zeros) return forward_error(zeros);
    if (how_.is_reordered)
      if (auto groups = read_groups(); !groups) return forward_error(groups);
    return std::move(matrix_);
  }

 private:
  bool lies_by_columns() const { return how_.kind == Kind::gptq || how_.kind == Kind::awq; }

  /// Sizes that fill whole words, where the order asks for it.
  Expected<void> check_sizes() const {
    const std::int32_t in_word = 32 / how_.bits;
    const bool are_rows_cut = lies_by_columns() && listed_.rows % in_word != 0;
    const bool are_columns_cut = how_.kind == Kind::gptq && listed_.columns % in_word != 0;
    if (are_rows_cut || are_columns_cut)
      return failure(Errc::unsupported, files_.where(names_.codes) + ": a matrix of " +
                                            std::to_string(listed_.rows) + " x " +
                                            std::to_string(listed_.columns) +
                                            ", expected multiples of " + std::to_string(in_word));
    if (how_.is_reordered && listed_.columns % 32 != 0)
      return failure(Errc::unsupported, files_.where(names_.groups) + ": " +
                                            std::to_string(listed_.columns) +
                                            " columns, expected a multiple of 32");
    return {};
  }

  /// A tensor that must be there.
  Expected<const TensorEntry*> find(const std::string& name) const {
    const TensorEntry* const entry = files_.entry(name);
    if (entry != nullptr) return entry;
    if (how_.kind == Kind::fp8)
      return failure(Errc::not_found, files_.where(names_.codes) +
                                          " is F8_E4M3, but there is neither " + listed_.name +
                                          ".weight_scale nor .weight_scale_inv");
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
    if (lies_by_columns() && shape.size() == 2) std::swap(shape[0], shape[1]);
    auto grid = scale_grid(how_, listed_.rows, listed_.columns, shape);
    if (!grid)
      return failure(Errc::unsupported,
                     files_.where(names_.scales) + " has shape " + shape_text((*found)->shape) +
                         ", expected one scale, one for each row, or one for each block or group "
                         "that quantization_config names");
    auto scales = how_.kind == Kind::fp8 ? read_scale_values(files_, names_.scales)
                                         : read_finite(names_.scales);
    if (!scales) return forward_error(scales);
    grid->scales = lies_by_columns() ? turned(*scales) : std::move(*scales);
    matrix_.grid = std::move(*grid);
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

  Expected<void> read_zeros() {
    const std::int64_t N = listed_.rows, in_word = 32 / how_.bits;
    const std::int64_t G = matrix_.grid.across(listed_.columns);
    const auto entry = find(names_.zeros);
    if (!entry) return forward_error(entry);
    if (!lies_by_columns() && (*entry)->dtype == "I8") return read_bytes_of_zeros();
    const Shape shape =
        lies_by_columns() ? Shape{G, parts(N, in_word)} : Shape{parts(N, in_word), G};
    const auto found = find(names_.zeros, "I32", shape);
    if (!found) return forward_error(found);
    matrix_.zeros.resize(N * G);
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t g = 0; g < G; ++g) {
        const std::int64_t word = n / in_word;
        const std::int64_t at = lies_by_columns() ? g * parts(N, in_word) + word : word * G + g;
        matrix_.zeros[n * G + g] = zero_of(word_at((*found)->bytes, at), n % in_word);
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

  Expected<void> read_groups() {
    const auto found = find(names_.groups, "I32", {listed_.columns});
    if (!found) return forward_error(found);
    const std::int32_t G = matrix_.grid.across(listed_.columns);
    for (std::int32_t k = 0; k < listed_.columns; ++k) {
      const auto group = static_cast<std::int32_t>(word_at((*found)->bytes, k));
      if (group < 0 || group >= G)
        return failure(Errc::bad_format, files_.where(names_.groups) + " has the group " +
                                             std::to_string(group) + ", expected 0.." +
                                             std::to_string(G - 1) + "; fetch the file again");
      matrix_.groups.push_back(group);
    }
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

Expected<CodedMatrix> read_coded(const SafetensorsDirectory& files, const ModelTensor& listed,
                                 const Quantization& how) {
  return CodedReader(files, listed, how).read();
}

std::size_t coded_bytes_to_copy(const SafetensorsDirectory& files, const ModelTensor& listed,
                                const Quantization& how) {
  const TensorEntry* const scales = files.entry(names_of(files, listed, how).scales);
  std::size_t count = scales != nullptr ? 1 : 0;
  if (scales != nullptr)
    for (const std::int64_t size : scales->shape) count *= static_cast<std::size_t>(size);
  const std::size_t groups = how.is_reordered ? std::size_t(listed.columns) : 0;
  return count * (sizeof(float) + (how.has_zeros ? 1 : 0)) + groups * sizeof(std::int32_t);
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
