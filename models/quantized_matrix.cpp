#include "models/quantized_matrix.hpp"

#include <cmath>
#include <utility>

#include "models/quantization/fp8_weights.hpp"

namespace kvhive {
namespace {

/// The scales beside a matrix in FP8, whose shape is checked, too.
Expected<ScaleGrid> read_scales(const SafetensorsDirectory& files, const ModelTensor& listed,
                                const Quantization& how) {
  const TensorEntry& codes = *files.entry(listed.weight_name());
  if (codes.shape != listed.weight_shape())
    return failure(Errc::bad_format, files.where(listed.weight_name()) + " has shape " +
                                         shape_text(codes.shape) + ", expected " +
                                         shape_text(listed.weight_shape()) + " from config.json");
  for (const char* const suffix : {".weight_scale_inv", ".weight_scale"}) {
    const std::string name = listed.name + suffix;
    const TensorEntry* const entry = files.entry(name);
    if (entry == nullptr) continue;
    auto grid = scale_grid(how, listed.rows, listed.columns, entry->shape);
    if (!grid)
      return failure(Errc::unsupported,
                     files.where(name) + " has shape " + shape_text(entry->shape) +
                         ", expected one scale, one for each row, or one for each block that "
                         "quantization_config names");
    auto scales = read_scale_values(files, name);
    if (!scales) return forward_error(scales);
    grid->scales = std::move(*scales);
    return std::move(*grid);
  }
  return failure(Errc::not_found, files.where(listed.weight_name()) +
                                      " is F8_E4M3, but there is neither " + listed.name +
                                      ".weight_scale nor .weight_scale_inv");
}

}  // namespace

bool is_in_fp8(const SafetensorsDirectory& files, const ModelTensor& listed,
               const Quantization& how) {
  const TensorEntry* const entry = files.entry(listed.weight_name());
  return how.kind == Quantization::Kind::fp8 && !listed.is_vector() && entry != nullptr &&
         entry->dtype == "F8_E4M3";
}

Expected<std::vector<std::byte>> read_quantized(const SafetensorsDirectory& files,
                                                const ModelTensor& listed, const Quantization& how,
                                                Dtype to) {
  auto grid = read_scales(files, listed, how);
  if (!grid) return forward_error(grid);
  return values_of_e4m3(files.entry(listed.weight_name())->bytes, listed.rows, listed.columns,
                        *grid, to);
}

Expected<std::vector<float>> read_scale_values(const SafetensorsDirectory& files,
                                               const std::string& name) {
  const auto found = files.find(name, files.entry(name)->shape);
  if (!found) return forward_error(found);
  std::vector<float> values(found->bytes.size() / bytes_of(found->dtype));
  read_floats(*found, 0, values);
  for (const float value : values)
    if (!std::isfinite(value) || value <= 0)
      return failure(Errc::bad_format, files.where(name) + " has a scale of " +
                                           std::to_string(value) +
                                           ", expected more than 0; fetch the file again");
  return values;
}

}  // namespace kvhive
