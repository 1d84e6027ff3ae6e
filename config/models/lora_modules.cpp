#include "config/models/lora_modules.hpp"

#include <algorithm>
#include <optional>

#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

using Names = std::span<const std::string>;

/// The model in front of "MODEL:NAME=DIRECTORY". Names may contain ':': the longest one that fits.
std::optional<std::size_t> model_in(std::string_view text, Names models) {
  std::optional<std::size_t> longest;
  for (std::size_t m = 0; m < models.size(); ++m)
    if (text.starts_with(models[m] + ":") &&
        (!longest || models[m].size() > models[*longest].size()))
      longest = m;
  return longest;
}

/// \param models  as for parse_lora_modules()
Expected<LoraModule> parse_one(std::string_view text, Names models) {
  const bool has_model = models.size() > 1;
  const auto refused = [&](const std::string& why) {
    const std::string form = has_model ? "MODEL:NAME=DIRECTORY" : "NAME=DIRECTORY";
    return failure(Errc::bad_argument, "lora-modules '" + std::string(text) + "' " + why +
                                           "; write " + form + "," + form);
  };
  LoraModule module;
  std::string_view rest = text;
  if (has_model) {
    const auto model = model_in(text, models);
    if (!model) return refused("has none of the models in front (" + joined(models) + ")");
    module.model = *model;
    rest.remove_prefix(models[*model].size() + 1);
  }
  const std::size_t equals = rest.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == rest.size())
    return refused("lacks a name or a directory");
  module.name = rest.substr(0, equals);
  module.directory = rest.substr(equals + 1);
  if (module.name.size() > kMostAdapterNameBytes)
    return refused("has a name of more than " + std::to_string(kMostAdapterNameBytes) + " bytes");
  if (std::ranges::any_of(module.name, [](unsigned char c) { return c <= ' ' || c >= 127; }))
    return refused("has a name with other characters than printable ASCII, or spaces");
  return module;
}

/// The names that a module must not have are those of models, and of the modules before it.
Expected<void> check_name(const std::string& name, const std::vector<LoraModule>& before,
                          Names models) {
  if (std::ranges::find(models, name) != models.end())
    return failure(Errc::bad_argument, "lora-modules '" + name + "' is " +
                                           (models.size() > 1 ? "a" : "the") +
                                           " model's own name; give the adapter another");
  if (std::ranges::find(before, name, &LoraModule::name) != before.end())
    return failure(Errc::bad_argument, "lora-modules names '" + name +
                                           "' twice; give each adapter a name of its own" +
                                           (models.size() > 1 ? ", whichever model's it is" : ""));
  return {};
}

}  // namespace

Expected<std::vector<LoraModule>> parse_lora_modules(std::string_view text, Names models) {
  std::vector<LoraModule> modules;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    auto module = parse_one(text.substr(0, end), models);
    if (!module) return forward_error(module);
    if (auto unique = check_name(module->name, modules, models); !unique)
      return forward_error(unique);
    modules.push_back(std::move(*module));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return modules;
}

}  // namespace kvhive
