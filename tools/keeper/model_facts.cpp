#include "tools/keeper/model_facts.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "config/sizing.hpp"
#include "tools/keeper/children/ask_child.hpp"

namespace kvhive {

Expected<std::optional<ModelFacts>> describe_model(const Options& options, std::uint32_t threads,
                                                   int stop, Depth depth) {
  Child engine;
  engine.program = "kvhive-engine";
  engine.flags = to_flags(options);
  engine.flags.push_back(depth == Depth::profile && needs_profile_run(options)
                             ? "--describe=profile"
                             : "--describe=config");
  engine.ends_with_keeper = true;  // only the keeper reads its answer
  engine.place.threads = threads;
  auto output = ask(engine, {.stop = stop});
  if (!output) return forward_error(output);
  if (!*output) return std::optional<ModelFacts>();
  const auto facts = nlohmann::json::parse(**output, nullptr, false);
  if (facts.is_discarded())
    return failure(Errc::bad_format, "kvhive-engine --describe printed no JSON");
  ModelFacts model;
  model.name = facts.at("name");
  model.fingerprint = facts.at("fingerprint");
  model.positions = facts.at("positions");
  model.weight_bytes = facts.at("weight_bytes");
  model.engine_peak = facts.at("engine_peak");
  model.device = DeviceKind(facts.at("device"));
  model.device_reason = facts.at("device_reason");
  model.cpu_kernels = facts.at("cpu_kernels");
  if (const auto& gpu = facts.at("gpu"); !gpu.is_null())
    model.gpu = {gpu.at("total"),
                 gpu.at("available"),
                 gpu.at("name"),
                 gpu.at("uuid"),
                 gpu.at("memory_needs_its_maker"),
                 gpu.at("sharing_reason")};
  const auto& kv = facts.at("kv");
  model.layout = {kv.at("layers"),      kv.at("kv_heads"),     kv.at("head_size"),
                  options.block_size,   Dtype(kv.at("dtype")), PageLayout(kv.at("pages")),
                  KvKind(kv.at("kind"))};
  const auto& groups = facts.at("groups");
  if (groups.empty() || groups.size() > kMostGroups)
    return failure(Errc::bad_format, "kvhive-engine --describe names " +
                                         std::to_string(groups.size()) +
                                         " cache groups; use programs of the same build");
  model.groups.count = static_cast<std::uint32_t>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    model.groups.group[g] = {CacheKind(groups[g].at(0)), groups[g].at(1)};
  return std::optional<ModelFacts>(std::move(model));
}

}  // namespace kvhive
