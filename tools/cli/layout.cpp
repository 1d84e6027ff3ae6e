// kvhive layout: what a block of a model is, and how many a memory size holds.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/byte_size.hpp"
#include "config/sizing.hpp"
#include "config/models/hosted_models.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "models/layer_groups.hpp"
#include "models/config/load_model_config.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/table.hpp"
#include "tools/program/option_flags.hpp"

namespace kvhive {
namespace {

struct LayoutFlags {
  explicit LayoutFlags(CLI::App& app)
      : options(app, {"model", "model-options", "block-size", "kv-cache-memory-bytes", "swap-space",
                      "kv-cache-dtype", "device", "cpu-kernels", "max-model-len",
                      "max-num-batched-tokens"}) {}
  CommonFlags common;
  OptionFlags options;
};

/// "1 of full attention, 5 of sliding window of 1024".
std::string shown(const CacheGroups& groups) {
  std::string text;
  for (std::size_t g = 0; g < groups.count;) {
    std::size_t end = g;
    while (end < groups.count && groups.group[end] == groups.group[g]) ++end;
    text +=
        (text.empty() ? "" : ", ") + std::to_string(end - g) + " of " + to_string(groups.group[g]);
    g = end;
  }
  return text;
}

/// A model, and how its cache is laid out.
struct Planned {
  std::string name;
  Options options;  ///< as its engines have them
  ModelConfig config;
  LayerGroups groups;
  KvLayout layout;
  std::uint32_t longest = 0;  ///< tokens of a sequence

  std::size_t held() const { return blocks_of_a_sequence(options, layout, groups.groups, longest); }
  std::size_t bytes_per_token() const {
    return groups.groups.count * layout.block_bytes() / layout.block_size;
  }
  /// How many the device tier holds, if no other model has any.
  std::size_t tokens(const PoolSize& size) const {
    return (std::size_t{size.device_blocks} - 1) / groups.groups.count * layout.block_size;
  }
};

/// No machine is asked here: what is not said to be on a GPU is not.
DeviceKind device_of(const Options& options) {
  return options.device == RequestedDevice::cuda ? DeviceKind::cuda : DeviceKind::cpu;
}

Expected<Planned> plan(const Options& options, std::span<const HostedModel> models, std::size_t m) {
  auto config = load_model_config(models[m].directory);
  if (!config) return forward_error(config);
  Planned planned{
      models[m].name, options_of(options, models, m), *config, group_layers(*config), {}};
  const auto dtype = kv_dtype_of(options.kv_cache_dtype, *config);
  if (!dtype) return forward_error(dtype);
  const std::uint32_t block_size = planned.options.block_size;
  planned.layout = device_of(options) == DeviceKind::cuda
                       ? kv_layout(*config, planned.groups, block_size, *dtype)
                       : fastest_kv_layout(*config, planned.groups, block_size, *dtype);
  return planned;
}

Expected<std::vector<Planned>> plan_all(const Options& options, std::vector<HostedModel>& models) {
  std::vector<Planned> all;
  std::size_t largest = 0;
  for (std::size_t m = 0; m < models.size(); ++m) {
    auto planned = plan(options, models, m);
    if (!planned) return forward_error(planned);
    largest = std::max(largest, planned->layout.block_bytes());
    all.push_back(std::move(*planned));
  }
  std::vector<KvLayout*> layouts;
  for (std::size_t m = 0; m < models.size(); ++m) {
    if (models[m].block_size == 0) {
      models[m].block_size = tokens_in(largest, all[m].layout, device_of(options));
      auto planned = plan(options, models, m);
      if (!planned) return forward_error(planned);
      all[m] = std::move(*planned);
    }
    layouts.push_back(&all[m].layout);
  }
  equalize(layouts);
  return all;
}

nlohmann::json to_json(const Planned& model, const PoolSize& size) {
  const KvLayout& layout = model.layout;
  nlohmann::json kinds = nlohmann::json::array();
  for (const CacheGroup& group : model.groups.groups.all())
    kinds.push_back(
        {{"kind", to_string(group.kind)},
         {"span", group.span},
         {"most_blocks", group.most_blocks(model.longest, model.options.max_num_batched_tokens,
                                           layout.block_size)}});
  return {{"model", model.name},
          {"layers", model.config.layers},
          {"layers_per_group", layout.layers},
          {"groups", kinds},
          {"blocks_of_longest_request", model.held()},
          {"bytes_of_longest_request", model.held() * layout.block_bytes()},
          {"kind", to_string(layout.kind)},
          {"kv_heads", layout.kv_heads},
          {"head_size", layout.head_size},
          {"dtype", to_string(layout.dtype)},
          {"page_layout", to_string(layout.pages)},
          {"block_size", layout.block_size},
          {"page_bytes", layout.layer_bytes()},
          {"block_bytes", layout.block_bytes()},
          {"unused_bytes_per_block", layout.padding},
          {"bytes_per_token", model.bytes_per_token()},
          {"device_blocks", size.device_blocks},
          {"host_blocks", size.host_blocks},
          {"tokens", model.tokens(size)},
          {"max_model_len", model.longest}};
}

std::string to_text(const Planned& model, const PoolSize& size) {
  const KvLayout& layout = model.layout;
  Table table;
  const std::string dtype(to_string(layout.dtype));
  if (layout.kind == KvKind::latent)
    table.add({"layers x latent row",
               std::to_string(model.config.layers) + " x " + std::to_string(kLatentElements) +
                   " + " + std::to_string(kLatentRopeElements) + ", " + dtype + ", " +
                   std::to_string(latent_row_bytes(layout.dtype)) + " B"});
  else
    table.add({"layers x kv heads x head size",
               std::to_string(model.config.layers) + " x " + std::to_string(layout.kv_heads) +
                   " x " + std::to_string(layout.head_size) + ", " + dtype});
  table.add({"cache groups", shown(model.groups.groups)});
  table.add({"page (one layer, " + std::to_string(layout.block_size) + " tokens)",
             format_bytes(layout.layer_bytes())});
  table.add({"page layout", std::string(to_string(layout.pages))});
  table.add({model.groups.groups.count == 1
                 ? "block (all layers)"
                 : "block (" + std::to_string(layout.layers) + " layers of a group)",
             format_bytes(layout.block_bytes())});
  if (layout.padding != 0) table.add({"of it unused", format_bytes(layout.padding)});
  table.add({"KV per token", format_bytes(model.bytes_per_token())});
  table.add({"device blocks", with_commas(size.device_blocks) + " (one of them the null block)"});
  table.add({"host blocks", with_commas(size.host_blocks)});
  table.add({"tokens in the device tier", with_commas(model.tokens(size))});
  table.add({"longest request", with_commas(model.longest) +
                                    (layout.block_size < model.longest
                                         ? ""
                                         : "; no longer than a block: nothing of it is cached")});
  table.add({"blocks of one such request", "at most " + with_commas(model.held()) + ", " +
                                               format_bytes(model.held() * layout.block_bytes())});
  return table.text();
}

Expected<void> run(const LayoutFlags& flags) {
  auto options = flags.options.options();
  if (!options) return forward_error(options);
  if (auto valid = check_options(*options); !valid) return valid;
  if (options->kv_cache_memory_bytes == 0)
    return failure(Errc::bad_argument,
                   "--kv-cache-memory-bytes '0': no machine is asked here, so give a size, as in "
                   "64M");
  auto kernels = choose_cpu_kernels(options->cpu_kernels);
  if (!kernels) return forward_error(kernels);
  use_cpu_kernels(*kernels);  // a page's layout suits them
  auto hosted = hosted_models(*options);
  if (!hosted) return forward_error(hosted);
  auto models = plan_all(*options, *hosted);
  if (!models) return forward_error(models);
  MemoryFigures unlimited;
  unlimited.total = unlimited.available = ~std::size_t{0};
  auto size = size_pool(*options, DeviceKind::cpu, models->front().layout.block_bytes(), unlimited);
  if (!size) return forward_error(size);
  if (auto fit = check_minimums(*hosted, size->device_blocks - 1); !fit) return fit;
  nlohmann::json all = nlohmann::json::array();
  std::string text;
  for (Planned& model : *models) {
    auto longest =
        longest_sequence(model.options, *size, model.layout, model.groups.groups,
                         static_cast<std::uint32_t>(model.config.max_position_embeddings));
    if (!longest) return forward_error(longest);
    model.longest = *longest;
    all.push_back(to_json(model, *size));
    if (models->size() > 1) text += (text.empty() ? "" : "\n") + model.name + "\n";
    text += to_text(model, *size);
  }
  if (flags.common.output() == Format::json)
    std::printf("%s\n", (all.size() == 1 ? all[0] : all).dump(2).c_str());
  else
    std::printf("%s", text.c_str());
  return {};
}

}  // namespace

void add_layout(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "layout", "page size and block count for a model, or several, and a memory size");
  auto flags = std::make_shared<LayoutFlags>(*command);
  flags->common.add_format_to(*command);
  for (const char* needed : {"--model", "--kv-cache-memory-bytes"})
    command->get_option(needed)->required();
  command->callback([flags, &exit_code] {
    if (auto done = run(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
