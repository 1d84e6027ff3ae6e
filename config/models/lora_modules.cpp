#include "config/models/lora_modules.hpp"

#include <algorithm>

namespace kvhive {
namespace {

Expected<LoraModule> parse_one(std::string_view text) {
  const auto refused = [&](const std::string& why) {
    return failure(Errc::bad_argument, "lora-modules '" + std::string(text) + "' " + why +
                                           "; write NAME=DIRECTORY,NAME=DIRECTORY");
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size())
    return refused("lacks a name or a directory");
  LoraModule module{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  if (module.name.size() > kMostAdapterNameBytes)
    return refused("has a name of more than " + std::to_string(kMostAdapterNameBytes) + " bytes");
  if (std::ranges::any_of(module.name, [](unsigned char c) { return c <= ' ' || c >= 127; }))
    return refused("has a name with other characters than printable ASCII, or spaces");
  return module;
}

}  // namespace

Expected<std::vector<LoraModule>> parse_lora_modules(std::string_view text) {
  std::vector<LoraModule> modules;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    auto module = parse_one(text.substr(0, end));
    if (!module) return forward_error(module);
    if (std::ranges::find(modules, module->name, &LoraModule::name) != modules.end())
      return failure(Errc::bad_argument, "lora-modules names '" + module->name +
                                             "' twice; give each adapter a name of its own");
    modules.push_back(std::move(*module));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return modules;
}

}  // namespace kvhive
