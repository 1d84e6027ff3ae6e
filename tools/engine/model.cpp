#include "tools/engine/model.hpp"

#include <filesystem>

#include "tools/program/progress_bar.hpp"

namespace kvhive {

std::string model_name(const Options& options) {
  return std::filesystem::weakly_canonical(options.model).filename().string();
}

KvLayout kv_layout(const Options& options, DeviceKind device, const ModelConfig& config) {
  const Dtype dtype = kv_dtype(options.kv_cache_dtype, config.dtype);
  const LayerGroups groups = group_layers(config);
  if (device == DeviceKind::cuda) return kv_layout(config, groups, options.block_size, dtype);
  return fastest_kv_layout(config, groups, options.block_size, dtype);
}

Expected<Transformer> load_model(const Options& options) {
  ProgressBar bar("loading " + model_name(options));
  return Transformer::load(options.model,
                           [&](std::size_t done, std::size_t total) { bar.show(done, total); });
}

}  // namespace kvhive
