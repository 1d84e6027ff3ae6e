// kvhive layout: what a block of a model is, and how many a memory size holds.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/byte_size.hpp"
#include "config/sizing.hpp"
#include "models/model_config.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

struct LayoutFlags {
  CommonFlags common;
  Options options;
  std::string memory, swap;
};

Expected<void> run(LayoutFlags& flags) {
  auto config = load_model_config(flags.options.model);
  if (!config) return forward_error(config);
  const auto dtype = flags.options.kv_cache_dtype == "auto"
                         ? std::optional(config->dtype)
                         : parse_kv_dtype(flags.options.kv_cache_dtype);
  if (!dtype)
    return failure(Errc::bad_argument,
                   "--kv-cache-dtype '" + flags.options.kv_cache_dtype +
                       "' is unknown; use auto, float32, bfloat16, float16, fp8, fp8_e4m3, "
                       "fp8_e5m2 or int8");
  for (const auto& [text, target] : {std::pair{&flags.memory, &flags.options.kv_cache_memory_bytes},
                                     std::pair{&flags.swap, &flags.options.swap_space}}) {
    if (text->empty()) continue;
    auto bytes = parse_bytes(*text);
    if (!bytes) return forward_error(bytes);
    *target = *bytes;
  }
  if (flags.options.block_size < 1 || flags.options.block_size > 1024)
    return failure(Errc::bad_argument, "--block-size: '" +
                                           std::to_string(flags.options.block_size) +
                                           "' must be 1..1024 tokens; 16 is usual");
  const KvLayout layout = fastest_kv_layout(*config, flags.options.block_size, *dtype);
  MemoryFigures unlimited;
  unlimited.total = unlimited.available = ~std::size_t{0};
  auto size = size_pool(flags.options, layout, unlimited,
                        static_cast<std::uint32_t>(config->max_position_embeddings));
  if (!size) return forward_error(size);
  const std::size_t per_token = layout.block_bytes() / layout.block_size;
  const std::size_t tokens = (std::size_t{size->device_blocks} - 1) * layout.block_size;
  if (flags.common.output() == Format::json) {
    const nlohmann::json json = {{"layers", layout.layers},
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
  table.add({"layers x kv heads x head size",
             std::to_string(layout.layers) + " x " + std::to_string(layout.kv_heads) + " x " +
                 std::to_string(layout.head_size) + ", " + std::string(to_string(layout.dtype))});
  table.add({"page (one layer, " + std::to_string(layout.block_size) + " tokens)",
             format_bytes(layout.layer_bytes())});
  table.add({"page layout", std::string(to_string(layout.pages))});
  table.add({"block (all layers)", format_bytes(layout.block_bytes())});
  table.add({"KV per token", format_bytes(per_token)});
  table.add({"device blocks", with_commas(size->device_blocks) + " (one of them the null block)"});
  table.add({"host blocks", with_commas(size->host_blocks)});
  table.add({"tokens in the device tier", with_commas(tokens)});
  table.add({"longest request", with_commas(size->max_model_len)});
  std::printf("%s", table.text().c_str());
  return {};
}

}  // namespace

void add_layout(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<LayoutFlags>();
  CLI::App* command =
      app.add_subcommand("layout", "page size and block count for a model and a memory size");
  flags->common.add_format_to(*command);
  command->add_option("--model", flags->options.model, "model directory")->required();
  command->add_option("--block-size", flags->options.block_size, "tokens per block (default 16)");
  command
      ->add_option("--kv-cache-memory-bytes", flags->memory,
                   "memory for the device tier, e.g. 2GiB")
      ->required();
  command->add_option("--swap-space", flags->swap, "memory for the host tier");
  command->add_option("--kv-cache-dtype", flags->options.kv_cache_dtype,
                      "auto, float32, bfloat16 or float16");
  command->add_option("--max-model-len", flags->options.max_model_len, "longest request to allow");
  command->callback([flags, &exit_code] {
    if (auto done = run(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
