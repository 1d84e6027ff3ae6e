#include "models/quantization/quantization.hpp"

#include <algorithm>
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

/// How many columns share a scale: -1, all.
void read_group_size(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  std::int32_t size = 0;
  reader.take(size, fields.integer("group_size", -1, kMostOfABlock));
  if (reader.ok() && size == 0)
    reader.fail(fields.wrong("group_size", "-1, or columns that share a scale"));
  how.group = std::max(size, 0);
  how.scale_of = Quantization::ScaleOf::row;
}

void read_bits(const JsonFields& fields, FieldReader& reader, const char* name, bool has_eight,
               Quantization& how) {
  reader.take(how.bits, fields.integer(name, 1, 64));
  if (reader.ok() && how.bits != 4 && !(has_eight && how.bits == 8))
    reader.fail(fields.wrong(name, has_eight ? "4 or 8" : "4", Errc::unsupported));
}

/// A field that must be without content, if it is there.
void expect_empty(const JsonFields& fields, FieldReader& reader, const char* name) {
  if (fields.has(name) && !fields.json().at(name).empty())
    reader.fail(fields.wrong(name, "none", Errc::unsupported));
}

/// GPTQModel's rules for some matrices: "-:pattern" leaves them as they are, which the files say,
/// too; others may override fields.
void expect_no_overrides(const JsonFields& fields, FieldReader& reader) {
  if (!fields.has("dynamic") || fields.json().at("dynamic") == false) return;
  const auto rules = fields.object("dynamic");
  if (!rules) return reader.fail(forward_error(rules));
  for (const auto& [pattern, overrides] : rules->json().items())
    if (!pattern.starts_with("-:") && !overrides.empty())
      reader.fail(rules->wrong(pattern, "nothing: one quantization for all", Errc::unsupported));
}

/// Weights of which half are 0 are stored in other ways.
void expect_dense(const JsonFields& fields, FieldReader& reader) {
  if (!fields.has("sparsity_config") || fields.json().at("sparsity_config").empty()) return;
  const auto config = fields.object("sparsity_config");
  if (!config) return reader.fail(forward_error(config));
  expect(*config, reader, "format", "dense");
}

void read_gptq(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  read_bits(fields, reader, "bits", true, how);
  read_group_size(fields, reader, how);
  reader.take(how.is_reordered, fields.boolean_or("desc_act", false));
  expect_no_overrides(fields, reader);
  expect(fields, reader, "pack_dtype", "int32");
  expect(fields, reader, "is_marlin_format", false);
  std::string format;
  reader.take(format, fields.text_or("checkpoint_format", "gptq"));
  if (reader.ok() && format != "gptq" && format != "gptq_v2")
    reader.fail(fields.wrong("checkpoint_format", "gptq or gptq_v2", Errc::unsupported));
  how.has_zeros = true;
  how.lacks_one = format == "gptq";
}

void read_awq(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  read_bits(fields, reader, "bits", false, how);
  read_group_size(fields, reader, how);
  std::string version;
  reader.take(version, fields.text_or("version", "gemm"));
  if (reader.ok() && version != "gemm" && version != "GEMM")
    reader.fail(fields.wrong("version", "gemm", Errc::unsupported));
  how.has_zeros = true;
}

/// Whose a scale is. A strategy that is left out follows from the size of groups
/// (compressed-tensors, quantization/quant_args.py).
void read_strategy(const JsonFields& weights, FieldReader& reader, Quantization& how) {
  const bool is_fp8 = how.kind == Quantization::Kind::fp8;
  std::string strategy;
  reader.take(strategy,
              weights.text_or("strategy", weights.has("group_size") ? "group" : "tensor"));
  if (!reader.ok()) return;
  if (strategy == "tensor") {
    how.scale_of = Quantization::ScaleOf::matrix;
  } else if (strategy == "channel") {
    how.scale_of = Quantization::ScaleOf::row;
  } else if (is_fp8 && strategy == "block") {
    read_block(weights, reader, "block_structure", how);
  } else if (!is_fp8 && strategy == "group") {
    read_group_size(weights, reader, how);
  } else {
    reader.fail(weights.wrong("strategy",
                              is_fp8 ? "tensor, channel or block" : "tensor, channel or group",
                              Errc::unsupported));
  }
}

/// What one group of a compressed-tensors config says of weights in FP8.
void read_floats(const JsonFields& weights, FieldReader& reader, Quantization& how) {
  expect(weights, reader, "num_bits", 8);
  expect(weights, reader, "type", "float");
  expect(weights, reader, "symmetric", true);
  read_strategy(weights, reader, how);
}

/// The same of integers. Those that are not packed have a byte each, whatever num_bits says.
void read_integers(const JsonFields& weights, FieldReader& reader, Quantization& how) {
  if (weights.has("num_bits")) read_bits(weights, reader, "num_bits", true, how);
  expect(weights, reader, "type", "int");
  bool is_symmetric = true;
  reader.take(is_symmetric, weights.boolean_or("symmetric", true));
  how.has_zeros = !is_symmetric;
  read_strategy(weights, reader, how);
}

/// The order in which columns were quantized changes what is stored only where each column names
/// its group; see g_idx in quantized_matrix.hpp.
void check_order(const JsonFields& weights, FieldReader& reader, const Quantization& how) {
  if (!weights.has("actorder")) return;
  const auto& order = weights.json().at("actorder");
  const bool has_groups = how.kind == Quantization::Kind::packed;
  if (order == false || order == "weight" || order == "static") return;
  if (has_groups && (order == "group" || order == "dynamic")) return;
  reader.fail(weights.wrong("actorder", has_groups ? "none, weight or group" : "none or weight",
                            Errc::unsupported));
}

Quantization read_group(const JsonFields& weights, FieldReader& reader, Quantization::Kind kind) {
  using Kind = Quantization::Kind;
  Quantization how{.kind = kind};
  expect(weights, reader, "dynamic", false);
  check_order(weights, reader, how);
  if (kind == Kind::fp8)
    read_floats(weights, reader, how);
  else
    read_integers(weights, reader, how);
  if (kind == Kind::int8) how.bits = 8;
  return how;
}

void read_compressed(const JsonFields& fields, FieldReader& reader, Quantization& how) {
  using Kind = Quantization::Kind;
  std::string format;
  reader.take(format, fields.text_or("format", "float-quantized"));
  if (!reader.ok()) return;
  const bool is_naive = format == "naive-quantized";
  if (!is_naive && format != "float-quantized" && format != "int-quantized" &&
      format != "pack-quantized")
    return reader.fail(
        fields.wrong("format", "float-quantized, int-quantized, naive-quantized or pack-quantized",
                     Errc::unsupported));
  expect_dense(fields, reader);
  expect_empty(fields, reader, "transform_config");
  const auto groups = fields.object("config_groups");
  if (!groups) return reader.fail(forward_error(groups));
  for (const auto& [name, value] : groups->json().items()) {
    const auto group = groups->object(name);
    if (!group) return reader.fail(forward_error(group));
    expect(*group, reader, "format", format);
    if (!group->has("weights")) continue;  // of activations, or of attention
    const auto weights = group->object("weights");
    if (!weights) return reader.fail(forward_error(weights));
    const bool is_float = is_naive && weights->has("type") && weights->json().at("type") == "float";
    const Kind kind = is_float || format == "float-quantized" ? Kind::fp8
                      : format == "pack-quantized"            ? Kind::packed
                                                              : Kind::int8;
    const Quantization of_group = read_group(*weights, reader, kind);
    if (reader.ok() && how.kind != Kind::none && of_group != how)
      reader.fail(groups->wrong(name, "weights as the groups before it", Errc::unsupported));
    how = of_group;
  }
}

}  // namespace

Expected<Quantization> read_quantization(const JsonFields& fields) {
  using Kind = Quantization::Kind;
  constexpr const char* kField = "quantization_config";
  Quantization how;
  if (!fields.has(kField)) return how;
  const auto config = fields.object(kField);
  if (!config) return forward_error(config);
  FieldReader reader(*config);
  std::string method;
  reader.take(method, config->text("quant_method"));
  if (!reader.ok()) return reader.error();
  if (method == "fp8") {
    how.kind = Kind::fp8;
    read_fp8(*config, reader, how);
  } else if (method == "gptq") {
    how.kind = Kind::gptq;
    read_gptq(*config, reader, how);
  } else if (method == "awq") {
    how.kind = Kind::awq;
    read_awq(*config, reader, how);
  } else if (method == "compressed-tensors") {
    read_compressed(*config, reader, how);
  } else {
    return config->wrong("quant_method",
                         "fp8, gptq, awq or compressed-tensors, or a model without "
                         "quantization_config, with weights in float32, bfloat16 or float16",
                         Errc::unsupported);
  }
  if (!reader.ok()) return reader.error();
  return how;
}

}  // namespace kvhive
