#include "tools/engine/describe.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/prompt_scores.hpp"
#include "actors/transformer_runner.hpp"
#include "base/byte_size.hpp"
#include "config/machine/machine_memory.hpp"
#include "config/models/hosted_models.hpp"
#include "models/fingerprint.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "models/transformer_weights.hpp"
#include "tools/engine/device_choice.hpp"
#include "tools/engine/gpu.hpp"
#include "tools/engine/model.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

Expected<std::size_t> weight_bytes(const std::filesystem::path& directory) {
  auto files = weight_files(directory);
  if (!files) return forward_error(files);
  std::size_t bytes = 0;
  for (const auto& file : *files) {
    std::error_code error;
    bytes += std::filesystem::file_size(file, error);
    if (error) return failure(Errc::not_found, file.string() + ": " + error.message());
  }
  return bytes;
}

/// Runs the largest possible step and returns this process's private memory after it, in bytes
/// (vLLM's profile run). Its own copies of weights (experts, scales) are included; pages of files,
/// which all engines share, are not, and are counted once elsewhere.
Expected<std::size_t> profile(const Options& options, const ModelConfig& config) {
  auto model = load_model(options);
  if (!model) return forward_error(model);
  const auto length = std::min(options.max_num_batched_tokens,
                               static_cast<std::uint32_t>(config.max_position_embeddings));
  const KvLayout layout = kv_layout(options, DeviceKind::cpu, config);
  const std::uint32_t blocks = (length + options.block_size - 1) / options.block_size;
  std::vector<std::byte> arena(blocks * layout.block_bytes());
  TransformerRunner runner(std::move(*model), arena.data(), layout);
  StepPlan plan;
  ScheduledSequence& work = plan.work.emplace_back();
  work.seq = SeqId{1};
  work.tokens.resize(length);
  work.samples = true;
  work.scored.assign(std::min<std::size_t>(length, scored_at_once(config)), 0);
  work.prompt_logprobs = kMostLogprobs;
  // All groups may use the same blocks: nobody looks at the result.
  const std::uint32_t groups = group_layers(config).groups.count;
  for (std::uint32_t i = 0; i < groups * blocks; ++i) work.blocks.push_back(BlockId{i % blocks});
  if (auto computed = runner.run(plan); !computed) return forward_error(computed);

  std::ifstream status("/proc/self/status");
  std::size_t anonymous = 0;
  for (std::string word; status >> word;)
    if (word == "RssAnon:") status >> anonymous;
  return std::max(anonymous * 1024, arena.size()) - arena.size();
}

/// Packed experts and scales of codes become copies in each engine's memory. Asked before the first
/// is made: the kernel would end the process instead of refusing memory.
Expected<void> check_room_for_copies(const Options& options, const ModelConfig& config) {
  const auto files = SafetensorsDirectory::open(hosted_model(options).directory);
  if (!files) return forward_error(files);
  const std::size_t copies = TransformerWeights::bytes_to_copy(*files, config);
  if (copies == 0) return {};
  const MachineMemory machine = machine_memory();
  if (copies <= machine.available) return {};
  return failure(Errc::out_of_memory,
                 "model " + hosted_model(options).directory +
                     ": what each engine copies of its weights (packed experts, scales of "
                     "quantized ones) takes " +
                     format_bytes(copies) + ", and " + machine.bound + " has " +
                     format_bytes(machine.available) +
                     " available; give it more memory, or take a smaller model");
}

/// What profile() measures, without a run and without copies of weights, for a daemon that needs no
/// exact number.
std::size_t estimate(const Options& options, const ModelConfig& config) {
  constexpr std::size_t kOfAProcess = std::size_t{24} << 20;
  const std::size_t rows =
      std::max<std::size_t>(options.most_sampled_rows(), scored_at_once(config));
  return kOfAProcess + Transformer::step_bytes(config, options.max_num_batched_tokens, rows) +
         rows * config.vocab_size * sizeof(float);
}

}  // namespace

Expected<void> print_model_facts(const Options& options, const ModelConfig& config,
                                 Described what) {
  auto choice = choose_device(options);
  if (!choice) return forward_error(choice);
  auto fingerprint = served_fingerprint(options, choice->kind);
  if (!fingerprint) return forward_error(fingerprint);
  const auto file_bytes = weight_bytes(hosted_model(options).directory);
  if (!file_bytes) return forward_error(file_bytes);
  std::size_t peak = 0, weights = *file_bytes;
  Json gpu = nullptr;
  if (Device* const device = choice->device.get(); device != nullptr) {
    auto figures = gpu_figures(*device, options, config);
    if (!figures) return forward_error(figures);
    peak = figures->engine_peak;
    weights = figures->weights;
    gpu = {{"total", figures->total},
           {"available", figures->available},
           {"name", device->facts().name},
           {"uuid", device->facts().uuid},
           {"memory_needs_its_maker", device->facts().memory_needs_its_maker},
           {"sharing_reason", device->facts().sharing_reason}};
  } else if (auto room = check_room_for_copies(options, config); !room) {
    return room;
  } else if (what == Described::profile) {
    auto measured = profile(options, config);
    if (!measured) return forward_error(measured);
    peak = *measured;
  } else {
    auto model = load_model(options);
    if (!model) return forward_error(model);
    peak = estimate(options, config) + model->private_weight_bytes();
  }
  if (auto tokenizer = load_tokenizer(hosted_model(options).directory); !tokenizer)
    return forward_error(tokenizer);
  const KvLayout layout = kv_layout(options, choice->kind, config);
  Json groups = Json::array();
  const LayerGroups layers = group_layers(config);
  for (const CacheGroup& group : layers.groups.all())
    groups.push_back({static_cast<int>(group.kind), group.span});
  const Json facts = {{"name", model_name(options)},
                      {"fingerprint", *fingerprint},
                      {"positions", config.max_position_embeddings},
                      {"weight_bytes", weights},
                      {"engine_peak", peak},
                      {"device", static_cast<int>(choice->kind)},
                      {"device_reason", choice->reason},
                      {"cpu_kernels", kernels_of(choice->kind)},
                      {"gpu", gpu},
                      {"groups", groups},
                      {"kv",
                       {{"layers", layout.layers},
                        {"kv_heads", layout.kv_heads},
                        {"head_size", layout.head_size},
                        {"dtype", static_cast<int>(layout.dtype)},
                        {"pages", static_cast<int>(layout.pages)},
                        {"kind", static_cast<int>(layout.kind)}}}};
  std::printf("%s\n", facts.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return {};
}

}  // namespace kvhive
