#include "tools/engine/model.hpp"

#include "config/models/lora_modules.hpp"
#include "config/models/hosted_models.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "models/fingerprint.hpp"
#include "tools/program/progress_bar.hpp"

namespace kvhive {

std::string model_name(const Options& options) { return hosted_model(options).name; }

KvLayout kv_layout(const Options& options, DeviceKind device, const ModelConfig& config) {
  const Dtype dtype = kv_dtype_of(options.kv_cache_dtype, config).value();
  const LayerGroups groups = group_layers(config);
  if (device == DeviceKind::cuda) return kv_layout(config, groups, options.block_size, dtype);
  return fastest_kv_layout(config, groups, options.block_size, dtype);
}

CpuKernels kernels_of(DeviceKind device) {
  return device == DeviceKind::cpu ? cpu_kernels() : CpuKernels{};
}

Expected<std::uint64_t> served_fingerprint(const Options& options, DeviceKind device) {
  auto fingerprint = model_fingerprint(hosted_model(options).directory);
  const auto modules = parse_lora_modules(options.lora_modules);
  if (!modules) return forward_error(modules);
  for (const LoraModule& module : *modules) {
    if (!fingerprint) break;
    fingerprint = with_adapter(*fingerprint, module.name, module.directory);
    if (!fingerprint)
      return failure(fingerprint.error().code,
                     "lora-modules '" + module.name + "': " + fingerprint.error().text);
  }
  if (fingerprint && device == DeviceKind::cpu)
    return with_arithmetic(*fingerprint, to_string(cpu_kernels()));
  return fingerprint;
}

namespace {

Error of_module(const LoraModule& module, const Error& error) {
  return {error.code, "lora-modules '" + module.name + "': " + error.text};
}

}  // namespace

Expected<std::vector<LoraFile>> open_adapters(const Options& options, const ModelConfig& config) {
  const auto modules = parse_lora_modules(options.lora_modules);
  if (!modules) return forward_error(modules);
  std::vector<LoraFile> files;
  for (const LoraModule& module : *modules) {
    auto file = LoraFile::open(module.directory, config);
    if (!file) return tl::unexpected(of_module(module, file.error()));
    files.push_back(std::move(*file));
  }
  return files;
}

Expected<Transformer> load_model(const Options& options) {
  ProgressBar bar("loading " + model_name(options));
  auto model =
      Transformer::load(hosted_model(options).directory,
                        [&](std::size_t done, std::size_t total) { bar.show(done, total); });
  if (!model) return model;
  const auto modules = parse_lora_modules(options.lora_modules);
  if (!modules) return forward_error(modules);
  for (const LoraModule& module : *modules)
    if (auto added = model->add_adapter(module.directory); !added)
      return tl::unexpected(of_module(module, added.error()));
  return model;
}

}  // namespace kvhive
