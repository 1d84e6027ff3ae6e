#include "models/quantization/quantization.hpp"

#include <string>

namespace kvhive {
namespace {

constexpr std::int64_t kMostOfABlock = 1 << 20;

/// A field that must have this value, if it is there.
void expect(const JsonFields& fields, FieldReader& reader, const char* name,
            const nlohmann::json& value) {
  if (fields.has(name) && fields.json().at(name) != value)
    reader.fail(fields.wrong(name, shown(value), Errc::unsupported));
}

/// [rows, columns] of the blocks that share a scale.
void read_block(const JsonFields& fields, FieldReader& reader, const char* name,
                Quantization& how) {
  const auto list = fields.array(name);
  if (!list) return reader.fail(forward_error(list));
  const auto is_size = [](const nlohmann::json& size) {
    return size.is_number_integer() && size > 0 && size <= kMostOfABlock;
  };
  if ((*list)->size() != 2 || !is_size((**list)[0]) || !is_size((**list)[1]))
    return reader.fail(fields.wrong(name, "[rows, columns] of a block", Errc::unsupported));
  how.block_rows = (**list)[0].get<std::int32_t>();
  how.block_columns = (**list)[1].get<std::int32_t>();
}

void read_fp8(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  expect(fields, reader, "fmt", "e4m3");
  std::string scheme;
  reader.take(scheme, fields.text_or("activation_scheme", "dynamic"));
  if (reader.ok() && scheme != "dynamic" && scheme != "static")
    reader.fail(fields.wrong("activation_scheme", "dynamic or static", Errc::unsupported));
  if (fields.has("weight_block_size")) read_block(fields, reader, "weight_block_size", how);
}

/// What one group of a compressed-tensors config says of weights.
void read_group(const JsonFields& weights, FieldReader& reader, Quantization& how) {
  expect(weights, reader, "num_bits", 8);
  expect(weights, reader, "type", "float");
  expect(weights, reader, "symmetric", true);
  expect(weights, reader, "dynamic", false);
  expect(weights, reader, "actorder", false);
  std::string strategy;
  reader.take(strategy, weights.text_or("strategy", "tensor"));
  if (!reader.ok()) return;
  if (strategy == "block") return read_block(weights, reader, "block_structure", how);
  if (strategy != "tensor" && strategy != "channel")
    reader.fail(weights.wrong("strategy", "tensor, channel or block", Errc::unsupported));
}

void read_compressed(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  expect(fields, reader, "format", "float-quantized");
  for (const char* const name : {"sparsity_config", "transform_config"})
    if (fields.has(name) && !fields.json().at(name).empty())
      reader.fail(fields.wrong(name, "none", Errc::unsupported));
  const auto groups = fields.object("config_groups");
  if (!groups) return reader.fail(forward_error(groups));
  bool is_first = true;
  for (const auto& [name, value] : groups->json().items()) {
    const auto group = groups->object(name);
    if (!group) return reader.fail(forward_error(group));
    const auto weights = group->object("weights");
    if (!weights) return reader.fail(forward_error(weights));
    Quantization of_group{.kind = Quantization::Kind::fp8};
    read_group(*weights, reader, of_group);
    const bool is_alike =
        of_group.block_rows == how.block_rows && of_group.block_columns == how.block_columns;
    if (reader.ok() && !is_first && !is_alike)
      reader.fail(groups->wrong(name, "blocks as the groups before it", Errc::unsupported));
    how = of_group;
    is_first = false;
  }
}

}  // namespace

Expected<Quantization> read_quantization(const JsonFields& fields) {
  constexpr const char* kField = "quantization_config";
  Quantization how;
  if (!fields.has(kField)) return how;
  const auto config = fields.object(kField);
  if (!config) return forward_error(config);
  FieldReader reader(*config);
  std::string method;
  reader.take(method, config->text("quant_method"));
  if (!reader.ok()) return reader.error();
  how.kind = Quantization::Kind::fp8;
  if (method == "fp8")
    read_fp8(*config, reader, how);
  else if (method == "compressed-tensors")
    read_compressed(*config, reader, how);
  else
    return fields.wrong(kField,
                        "quant_method fp8 or compressed-tensors, or weights in float32, bfloat16 "
                        "or float16",
                        Errc::unsupported);
  if (!reader.ok()) return reader.error();
  return how;
}

}  // namespace kvhive
