#include "config/option_table.hpp"
#include "config/resolved_options.hpp"

namespace kvhive {

std::vector<std::string> to_flags(const Options& options) {
  std::vector<std::string> flags;
  for (const OptionField& field : option_fields()) {
    const std::string text = field.type.format(options);
    if (text.empty() && field.type.format({}).empty()) continue;  // some take no empty text
    flags.push_back("--" + std::string(field.name));
    flags.push_back(text);
  }
  return flags;
}

namespace {

/// The flags of `found`, with resolved values in place of the asked ones.
std::vector<std::string> to_flags(Options found, const ResolvedOptions& options) {
  found.device = options.device == DeviceKind::cuda ? RequestedDevice::cuda : RequestedDevice::cpu;
  if (options.device == DeviceKind::cpu) found.cpu_kernels = request_for(options.cpu_kernels);
  found.user.clear();  // the daemon is that user already
  found.gpu_memory_sharing = options.gpu_memory_sharing;
  return to_flags(found);
}

}  // namespace

std::vector<std::string> to_flags(const ResolvedOptions& options, ModelId model) {
  return to_flags(options.models.empty() ? options.asked
                                         : options_of(options.asked, options.models, model.value),
                  options);
}

std::vector<std::string> flags_of_all_models(const ResolvedOptions& options) {
  return to_flags(options.asked, options);
}

}  // namespace kvhive
