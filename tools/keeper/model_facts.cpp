#include "tools/keeper/model_facts.hpp"

#include <nlohmann/json.hpp>

#include "config/sizing.hpp"
#include "tools/keeper/child.hpp"

namespace kvhive {

Expected<ModelFacts> describe_model(const Options& options) {
  std::vector<std::string> flags = to_flags(options);
  flags.push_back(needs_profile_run(options) ? "--describe=profile" : "--describe=config");
  auto output = run_to_end("kvhive-engine", flags);
  if (!output) return forward_error(output);
  const auto facts = nlohmann::json::parse(*output, nullptr, false);
  if (facts.is_discarded())
    return failure(Errc::bad_format, "kvhive-engine --describe printed no JSON");
  ModelFacts model;
  model.name = facts.at("name");
  model.fingerprint = facts.at("fingerprint");
  model.positions = facts.at("positions");
  model.weight_bytes = facts.at("weight_bytes");
  model.engine_peak = facts.at("engine_peak");
  model.device = facts.at("device");
  model.device_reason = facts.at("device_reason");
  if (const auto& gpu = facts.at("gpu"); !gpu.is_null())
    model.gpu = {gpu.at("total"), gpu.at("available")};
  const auto& kv = facts.at("kv");
  model.layout = {kv.at("layers"),    kv.at("kv_heads"),     kv.at("head_size"),
                  options.block_size, Dtype(kv.at("dtype")), PageLayout(kv.at("pages"))};
  return model;
}

}  // namespace kvhive
