#include "models/adapters/lora_file.hpp"

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "base/json_file.hpp"
#include "models/model_tensors.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

Error unsupported(const std::filesystem::path& file, const std::string& field, const Json& value) {
  return {Errc::unsupported, file.string() + ": " + field + " is " + value.dump() +
                                 ", which kvhive does not compute; merge the adapter into its "
                                 "model, or train it without"};
}

/// Refuses a field that is neither left out nor as it is without it.
Expected<void> expect_plain(const std::filesystem::path& file, const Json& config,
                            const std::string& field, const Json& plain) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null() || *found == plain) return {};
  if (found->is_object() && found->empty()) return {};
  if (found->is_array() && found->empty()) return {};
  return tl::unexpected<Error>(unsupported(file, field, *found));
}

/// What B (A x) is multiplied by, and the rank that it was divided by.
struct Scale {
  float value = 1;
  double rank = 0;
};
Expected<Scale> read_scale(const std::filesystem::path& file, const Json& config) {
  const Json type = config.value("peft_type", Json());
  if (type != "LORA") return tl::unexpected<Error>(unsupported(file, "peft_type", type));
  for (const auto& [field, plain] : {std::pair<const char*, Json>{"bias", "none"},
                                     {"use_dora", false},
                                     {"lora_bias", false},
                                     {"fan_in_fan_out", false},
                                     {"modules_to_save", nullptr},
                                     {"rank_pattern", nullptr},
                                     {"alpha_pattern", nullptr},
                                     {"trainable_token_indices", nullptr}})
    if (auto is_plain = expect_plain(file, config, field, plain); !is_plain)
      return forward_error(is_plain);
  const auto number = [&](const char* field) -> Expected<double> {
    const auto found = config.find(field);
    if (found == config.end() || !found->is_number() || found->get<double>() <= 0)
      return failure(Errc::bad_format, file.string() + ": " + field +
                                           " is missing or not more than 0; fetch the file again");
    return found->get<double>();
  };
  const auto rank = number("r");
  if (!rank) return forward_error(rank);
  const auto alpha = number("lora_alpha");
  if (!alpha) return forward_error(alpha);
  const Json stabilised = config.value("use_rslora", Json(false));
  if (!stabilised.is_boolean() && !stabilised.is_null())
    return tl::unexpected<Error>(unsupported(file, "use_rslora", stabilised));
  const auto scale = static_cast<float>(*alpha / (stabilised == true ? std::sqrt(*rank) : *rank));
  if (!std::isfinite(scale))
    return failure(Errc::bad_format,
                   file.string() + ": lora_alpha / r is no number; fetch the file again");
  return Scale{scale, *rank};
}

bool may_be_adapted(const ModelTensor& listed) {
  constexpr LayerWeightSet kMatrices{
      LayerWeight::q,  LayerWeight::k,    LayerWeight::v,   LayerWeight::o,   LayerWeight::gate,
      LayerWeight::up, LayerWeight::down, LayerWeight::q_a, LayerWeight::q_b, LayerWeight::kv_a};
  return listed.use == ModelTensor::Use::layer && listed.expert < 0 && kMatrices.has(listed.weight);
}

}  // namespace

Expected<LoraFile> LoraFile::open(const std::filesystem::path& directory,
                                  const ModelConfig& config) {
  const auto config_file = directory / "adapter_config.json";
  const auto json = read_json_object(config_file);
  if (!json) return forward_error(json);
  const auto scale = read_scale(config_file, *json);
  if (!scale) return forward_error(scale);
  auto files = SafetensorsDirectory::open_file(directory / "adapter_model.safetensors");
  if (!files) return forward_error(files);

  LoraFile adapter(std::move(*files));
  const SafetensorsDirectory& tensors = adapter.files_;
  adapter.scale_ = scale->value;
  const auto names = tensors.names();
  std::set<std::string> unknown(names.begin(), names.end());
  for (const ModelTensor& listed : model_tensors(config)) {
    const std::string a_name = "base_model.model." + listed.name + ".lora_A.weight";
    const std::string b_name = "base_model.model." + listed.name + ".lora_B.weight";
    const TensorEntry* const a = tensors.entry(a_name);
    if (!may_be_adapted(listed) || (a == nullptr && tensors.entry(b_name) == nullptr)) continue;
    const std::int64_t rank = a == nullptr || a->shape.empty() ? 0 : a->shape[0];
    if (rank < 1 || rank > listed.columns || static_cast<double>(rank) != scale->rank)
      return failure(Errc::bad_format, tensors.where(a_name) + " is missing or has a rank of " +
                                           std::to_string(rank) + ", " + config_file.string() +
                                           " says r " + (*json)["r"].dump() +
                                           "; fetch both files again");
    const auto down = tensors.find(a_name, std::array<std::int64_t, 2>{rank, listed.columns});
    if (!down) return forward_error(down);
    const auto up = tensors.find(b_name, std::array<std::int64_t, 2>{listed.rows, rank});
    if (!up) return forward_error(up);
    adapter.pairs_.push_back({listed.layer, listed.weight, static_cast<std::int32_t>(rank),
                              listed.columns, listed.rows, *down, *up});
    unknown.erase(a_name);
    unknown.erase(b_name);
  }
  if (!unknown.empty())
    return failure(Errc::unsupported,
                   tensors.where(*unknown.begin()) +
                       " belongs to nothing that kvhive adapts in this model: " +
                       (config.is_latent() ? "q_proj, q_a_proj, q_b_proj, kv_a_proj_with_mqa, "
                                           : "q_proj, k_proj, v_proj, ") +
                       "o_proj, gate_proj, up_proj and down_proj of its layers");
  if (adapter.pairs_.empty())
    return failure(
        Errc::bad_format,
        directory.string() + ": adapter_model.safetensors has no tensor; fetch it again");
  return adapter;
}

}  // namespace kvhive
