// kvhive layout: what a block of a model is, and how many a memory size holds.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/byte_size.hpp"
#include "config/sizing.hpp"
#include "models/layer_groups.hpp"
#include "models/model_config.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/table.hpp"
#include "tools/program/option_flags.hpp"

namespace kvhive {
namespace {

struct LayoutFlags {
  explicit LayoutFlags(CLI::App& app)
      : options(app, {"model", "block-size", "kv-cache-memory-bytes", "swap-space",
                      "kv-cache-dtype", "max-model-len", "max-num-batched-tokens"}) {}
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

Expected<void> run(const LayoutFlags& flags) {
  auto options = flags.options.options();
  if (!options) return forward_error(options);
  if (auto valid = check_options(*options); !valid) return valid;
  if (options->kv_cache_memory_bytes == 0)
    return failure(Errc::bad_argument,
                   "--kv-cache-memory-bytes '0': no machine is asked here, so give a size, as in "
                   "64M");
  auto config = load_model_config(options->model);
  if (!config) return forward_error(config);
  const auto dtype = kv_dtype_of(options->kv_cache_dtype, *config);
  if (!dtype) return forward_error(dtype);
  const LayerGroups of_layers = group_layers(*config);
  const CacheGroups& groups = of_layers.groups;
  const KvLayout layout = fastest_kv_layout(*config, of_layers, options->block_size, *dtype);
  MemoryFigures unlimited;
  unlimited.total = unlimited.available = ~std::size_t{0};
  auto size = size_pool(*options, DeviceKind::cpu, layout, groups, unlimited,
                        static_cast<std::uint32_t>(config->max_position_embeddings));
  if (!size) return forward_error(size);
  const std::size_t per_token = groups.count * layout.block_bytes() / layout.block_size;
  const std::size_t tokens =
      (std::size_t{size->device_blocks} - 1) / groups.count * layout.block_size;
  const std::size_t held = blocks_of_a_sequence(*options, layout, groups, size->max_model_len);
  if (flags.common.output() == Format::json) {
    nlohmann::json kinds = nlohmann::json::array();
    for (const CacheGroup& group : groups.all())
      kinds.push_back(
          {{"kind", to_string(group.kind)},
           {"span", group.span},
           {"most_blocks", group.most_blocks(size->max_model_len, options->max_num_batched_tokens,
                                             layout.block_size)}});
    const nlohmann::json json = {{"layers", config->layers},
                                 {"layers_per_group", layout.layers},
                                 {"groups", kinds},
                                 {"blocks_of_longest_request", held},
                                 {"bytes_of_longest_request", held * layout.block_bytes()},
                                 {"kind", to_string(layout.kind)},
                                 {"kv_heads", layout.kv_heads},
                                 {"head_size", layout.head_size},
                                 {"dtype", to_string(layout.dtype)},
                                 {"page_layout", to_string(layout.pages)},
                                 {"block_size", layout.block_size},
                                 {"page_bytes", layout.layer_bytes()},
                                 {"block_bytes", layout.block_bytes()},
                                 {"bytes_per_token", per_token},
                                 {"device_blocks", size->device_blocks},
                                 {"host_blocks", size->host_blocks},
                                 {"tokens", tokens},
                                 {"max_model_len", size->max_model_len}};
    std::printf("%s\n", json.dump(2).c_str());
    return {};
  }
  Table table;
  const std::string dtype_name(to_string(layout.dtype));
  if (layout.kind == KvKind::latent)
    table.add({"layers x latent row",
               std::to_string(config->layers) + " x " + std::to_string(kLatentElements) + " + " +
                   std::to_string(kLatentRopeElements) + ", " + dtype_name + ", " +
                   std::to_string(latent_row_bytes(layout.dtype)) + " B"});
  else
    table.add({"layers x kv heads x head size",
               std::to_string(config->layers) + " x " + std::to_string(layout.kv_heads) + " x " +
                   std::to_string(layout.head_size) + ", " + dtype_name});
  table.add({"cache groups", shown(groups)});
  table.add({"page (one layer, " + std::to_string(layout.block_size) + " tokens)",
             format_bytes(layout.layer_bytes())});
  table.add({"page layout", std::string(to_string(layout.pages))});
  table.add({groups.count == 1 ? "block (all layers)"
                               : "block (" + std::to_string(layout.layers) + " layers of a group)",
             format_bytes(layout.block_bytes())});
  table.add({"KV per token", format_bytes(per_token)});
  table.add({"device blocks", with_commas(size->device_blocks) + " (one of them the null block)"});
  table.add({"host blocks", with_commas(size->host_blocks)});
  table.add({"tokens in the device tier", with_commas(tokens)});
  table.add({"longest request", with_commas(size->max_model_len)});
  table.add({"blocks of one such request",
             "at most " + with_commas(held) + ", " + format_bytes(held * layout.block_bytes())});
  std::printf("%s", table.text().c_str());
  return {};
}

}  // namespace

void add_layout(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("layout", "page size and block count for a model and a memory size");
  auto flags = std::make_shared<LayoutFlags>(*command);
  flags->common.add_format_to(*command);
  for (const char* needed : {"--model", "--kv-cache-memory-bytes"})
    command->get_option(needed)->required();
  command->callback([flags, &exit_code] {
    if (auto done = run(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
