#include "config/models/hosted_models.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "config/domains/rule_text.hpp"
#include "config/models/lora_modules.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {
namespace {

Error wrong(const std::string& option, const std::string& value, const std::string& remedy) {
  return {Errc::bad_argument, option + ": '" + value + "' " + remedy};
}

std::string name_of_directory(const std::string& directory) {
  std::error_code ignored;
  const auto path = std::filesystem::weakly_canonical(directory, ignored);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// "NAME=DIRECTORY" or "DIRECTORY". A directory may have a '=' behind a '/'.
Expected<HostedModel> parse_model(const std::string& text) {
  const std::size_t equals = text.find('=');
  const bool is_named = equals != std::string::npos && equals < text.find('/');
  HostedModel model;
  model.directory = is_named ? text.substr(equals + 1) : text;
  model.name = is_named ? text.substr(0, equals) : name_of_directory(text);
  if (model.directory.empty() || model.name.empty())
    return tl::unexpected(
        wrong("model", text, "lacks a name or a directory; write DIRECTORY or NAME=DIRECTORY"));
  if (!is_named) return model;
  if (model.name.size() > kMostModelNameBytes)
    return tl::unexpected(wrong("model", text,
                                "has a name of more than " + std::to_string(kMostModelNameBytes) +
                                    " bytes; give a shorter one"));
  if (std::ranges::any_of(model.name, [](unsigned char c) { return c <= ' ' || c >= 127; }))
    return tl::unexpected(wrong(
        "model", text, "has a name with spaces, or with other characters than printable ASCII"));
  return model;
}

/// "engines:2"
Expected<void> parse_part(HostedModel& model, const std::string& text) {
  const auto parts = split_list(text, ':');
  const auto refused = [&](const std::string& remedy) -> Expected<void> {
    return tl::unexpected(wrong("model-options", text, remedy));
  };
  if (parts.size() != 2)
    return refused(
        "is no option of a model; write engines:N, block-size:N, max-model-len:N or "
        "min-blocks:N");
  const std::string &name = parts[0], &value = parts[1];
  if (name == "min-blocks") {
    if (parse_amount(model.min_blocks, value)) return {};
    return refused(
        "is no number of blocks; give a whole number >= 1, or a percentage of the "
        "device tier, e.g. 25%");
  }
  struct Field {
    std::string_view name;
    std::uint32_t HostedModel::*field;
    std::uint32_t most;
  };
  for (const Field& field : {Field{"engines", &HostedModel::engines, kMaxProcesses},
                             Field{"block-size", &HostedModel::block_size, 1024},
                             Field{"max-model-len", &HostedModel::max_model_len, 1u << 31}}) {
    if (name != field.name) continue;
    if (parse_number(model.*field.field, value) && model.*field.field >= 1 &&
        model.*field.field <= field.most)
      return {};
    return refused("is out of range; give a whole number in [1, " + std::to_string(field.most) +
                   "]");
  }
  return refused("is unknown; use engines, block-size, max-model-len or min-blocks");
}

/// "a=engines:2,min-blocks:10%;b=block-size:32"
Expected<void> parse_model_options(std::vector<HostedModel>& models, const std::string& text) {
  std::vector<std::string> seen;
  for (const std::string& rule : split_list(text, ';')) {
    if (rule.empty()) continue;  // a semicolon at the end
    const std::size_t equals = rule.find('=');
    const std::string name = rule.substr(0, equals);
    const auto model = std::ranges::find(models, name, &HostedModel::name);
    if (equals == std::string::npos || model == models.end())
      return tl::unexpected(wrong("model-options", rule,
                                  "names no model; write NAME=engines:2,block-size:32, with one of "
                                  "the names that --model gives: " +
                                      joined(model_names(models))));
    if (std::ranges::find(seen, name) != seen.end())
      return tl::unexpected(
          wrong("model-options", name, "is there twice; write its options in one place"));
    seen.push_back(name);
    for (const std::string& part : split_list(rule.substr(equals + 1), ','))
      if (auto parsed = parse_part(*model, part); !parsed) return parsed;
  }
  return {};
}

Expected<void> check_models(const Options& options, std::span<const HostedModel> models) {
  for (std::size_t i = 0; i < models.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (models[i].name == models[k].name)
        return tl::unexpected(wrong("model", models[i].name,
                                    "is the name of two models; give one another: "
                                    "NAME=DIRECTORY"));
  if (models.size() > kMostModels)
    return tl::unexpected(wrong("model", options.model,
                                "names " + std::to_string(models.size()) + " models; a pool has " +
                                    "at most " + std::to_string(kMostModels)));
  if (const std::uint32_t engines = all_engines(models); engines > kMaxProcesses)
    return tl::unexpected(wrong("engines", std::to_string(options.engines),
                                "makes " + std::to_string(engines) + " with all models; a pool " +
                                    "has at most " + std::to_string(kMaxProcesses)));
  return {};
}

/// What --lora-modules would be, if there were no other model. check_options() has found no error.
std::string lora_modules_of(const Options& options, std::span<const HostedModel> models,
                            std::size_t model) {
  std::string own;
  const auto modules = parse_lora_modules(options.lora_modules, model_names(models));
  if (!modules) return own;
  for (const LoraModule& module : *modules)
    if (module.model == model)
      own += (own.empty() ? "" : ",") + module.name + "=" + module.directory;
  return own;
}

}  // namespace

Expected<std::vector<HostedModel>> hosted_models(const Options& options) {
  std::vector<HostedModel> models;
  for (const std::string& text : split_list(options.model, ',')) {
    auto model = parse_model(text);
    if (!model) return forward_error(model);
    model->engines = options.engines;
    model->max_model_len = options.max_model_len;
    models.push_back(std::move(*model));
  }
  if (models.size() == 1) models[0].block_size = options.block_size;
  if (auto parsed = parse_model_options(models, options.model_options); !parsed)
    return forward_error(parsed);
  if (auto possible = check_models(options, models); !possible) return forward_error(possible);
  return models;
}

HostedModel hosted_model(const Options& options) {
  auto models = hosted_models(options);
  return models && !models->empty() ? std::move(models->front()) : HostedModel{};
}

std::vector<std::string> model_names(std::span<const HostedModel> models) {
  std::vector<std::string> names;
  for (const HostedModel& model : models) names.push_back(model.name);
  return names;
}

std::uint32_t all_engines(std::span<const HostedModel> models) {
  return std::accumulate(
      models.begin(), models.end(), 0u,
      [](std::uint32_t sum, const HostedModel& model) { return sum + model.engines; });
}

Expected<void> check_minimums(std::span<const HostedModel> models, std::uint32_t blocks) {
  std::uint64_t sum = 0;
  for (const HostedModel& model : models) {
    sum += model.min_blocks.is_given() ? model.min_blocks.of(blocks) : 0;
    if (sum > blocks)
      return failure(Errc::bad_argument,
                     "model-options: 'min-blocks:" + to_string(model.min_blocks) + "' of '" +
                         model.name + "' makes " + std::to_string(sum) +
                         " blocks with the minimums before it, but the device tier has " +
                         std::to_string(blocks) +
                         "; lower min-blocks, or give the pool more memory "
                         "(--kv-cache-memory-bytes)");
  }
  return {};
}

Options options_of(const Options& options, std::span<const HostedModel> models, std::size_t model) {
  const HostedModel& one = models[model];
  Options own = options;
  if (models.size() > 1) {
    own.model = one.name + "=" + one.directory;
    own.lora_modules = lora_modules_of(options, models, model);
  }
  own.model_options.clear();
  own.engines = all_engines(models);
  if (one.block_size != 0) own.block_size = one.block_size;
  own.max_model_len = one.max_model_len;
  return own;
}

}  // namespace kvhive
