#include "models/adapters/lora_adapter.hpp"

#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "base/check.hpp"
#include "base/json_file.hpp"
#include "models/model_tensors.hpp"
#include "models/safetensors.hpp"
#include "models/transformer_weights.hpp"

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

/// The matrix as f32, in memory of its own: adapters are small.
Matmul copied(const TensorView& tensor, std::int32_t rows, std::int32_t columns) {
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  read_floats(tensor, 0, values);
  std::vector<std::byte> owned(values.size() * sizeof(float));
  std::memcpy(owned.data(), values.data(), owned.size());
  return Matmul({Dtype::f32, rows, columns, {}}, std::move(owned), {});
}

bool may_be_adapted(const ModelTensor& listed) {
  constexpr LayerWeightSet kMatrices{
      LayerWeight::q,  LayerWeight::k,    LayerWeight::v,   LayerWeight::o,   LayerWeight::gate,
      LayerWeight::up, LayerWeight::down, LayerWeight::q_a, LayerWeight::q_b, LayerWeight::kv_a};
  return listed.use == ModelTensor::Use::layer && listed.expert < 0 && kMatrices.has(listed.weight);
}

}  // namespace

Expected<LoraAdapter> LoraAdapter::load(const std::filesystem::path& directory,
                                        const ModelConfig& config) {
  const auto config_file = directory / "adapter_config.json";
  const auto json = read_json_object(config_file);
  if (!json) return forward_error(json);
  const auto scale = read_scale(config_file, *json);
  if (!scale) return forward_error(scale);
  auto files = SafetensorsDirectory::open_file(directory / "adapter_model.safetensors");
  if (!files) return forward_error(files);

  LoraAdapter adapter;
  adapter.scale_ = scale->value;
  const auto names = files->names();
  std::set<std::string> unknown(names.begin(), names.end());
  for (const ModelTensor& listed : model_tensors(config)) {
    const std::string a_name = "base_model.model." + listed.name + ".lora_A.weight";
    const std::string b_name = "base_model.model." + listed.name + ".lora_B.weight";
    const TensorEntry* const a = files->entry(a_name);
    if (!may_be_adapted(listed) || (a == nullptr && files->entry(b_name) == nullptr)) continue;
    const std::int64_t rank = a == nullptr || a->shape.empty() ? 0 : a->shape[0];
    if (rank < 1 || rank > listed.columns || static_cast<double>(rank) != scale->rank)
      return failure(Errc::bad_format, files->where(a_name) + " is missing or has a rank of " +
                                           std::to_string(rank) + ", " + config_file.string() +
                                           " says r " + (*json)["r"].dump() +
                                           "; fetch both files again");
    const auto down = files->find(a_name, std::array<std::int64_t, 2>{rank, listed.columns});
    if (!down) return forward_error(down);
    const auto up = files->find(b_name, std::array<std::int64_t, 2>{listed.rows, rank});
    if (!up) return forward_error(up);
    const auto r = static_cast<std::int32_t>(rank);
    adapter.pairs_.emplace(std::pair{listed.layer, listed.weight},
                           Pair{copied(*down, r, listed.columns), copied(*up, listed.rows, r), r,
                                listed.columns, listed.rows});
    adapter.bytes_ +=
        sizeof(float) * static_cast<std::size_t>(r) *
        (static_cast<std::size_t>(listed.columns) + static_cast<std::size_t>(listed.rows));
    unknown.erase(a_name);
    unknown.erase(b_name);
  }
  if (!unknown.empty())
    return failure(Errc::unsupported,
                   files->where(*unknown.begin()) +
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

void LoraAdapter::add(std::int32_t layer, LayerWeight weight, std::span<const float> x,
                      std::span<float> y, std::vector<float>& scratch) const {
  const auto found = pairs_.find({layer, weight});
  if (found == pairs_.end()) return;
  const Pair& pair = found->second;
  const std::size_t rows = x.size() / static_cast<std::size_t>(pair.in);
  KV_CHECK(y.size() == rows * static_cast<std::size_t>(pair.out), y.size(), rows, pair.out);
  const std::size_t inner = rows * static_cast<std::size_t>(pair.rank);
  scratch.resize(inner + y.size());
  const std::span<float> narrow = std::span(scratch).first(inner);
  const std::span<float> wide = std::span(scratch).subspan(inner);
  pair.a.apply(x, narrow);
  pair.b.apply(narrow, wide);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += scale_ * wide[i];
}

}  // namespace kvhive
