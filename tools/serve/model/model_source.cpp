#include "tools/serve/model/model_source.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "ipc/questions.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {
namespace {

/// The files that the service reads, as far as a change of them shows without reading.
std::string state_of_files(const std::filesystem::path& directory) {
  std::string state;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja"}) {
    struct stat file {};
    if (stat((directory / name).c_str(), &file) != 0) continue;
    state += std::string(name) + " " + std::to_string(file.st_size) + " " +
             std::to_string(file.st_mtim.tv_sec) + "." + std::to_string(file.st_mtim.tv_nsec) +
             "\n";
  }
  return state;
}

struct Asked {
  std::string epoch;      ///< of its pool
  nlohmann::json models;  ///< its rows
};

Expected<Asked> ask_daemon(const std::string& path) {
  const auto socket = connect_to_daemon(path);
  if (!socket) return forward_error(socket);
  auto welcome = say_hello(socket->get(), InspectorHello{layout_hash({}), 0});
  if (!welcome) return forward_error(welcome);
  const auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  const auto status = ask_status(socket->get(), 1);
  if (!status) return forward_error(status);
  return Asked{epoch_of(*memory), status->at("models")};
}

/// The daemon's row of the model of this name, or of its first.
Expected<nlohmann::json> find_hosted(const nlohmann::json& models, const std::string& name) {
  std::string known;
  for (const nlohmann::json& model : models) {
    if (name.empty() || model.at("name") == name) return model;
    known += (known.empty() ? "" : ", ") + model.at("name").get<std::string>();
  }
  return failure(Errc::not_found,
                 "'" + name + "' is not served by the daemon; there are: " + known);
}

Hive::ModelId id_of(const DaemonModel& told, const std::string& files) {
  std::string text = told.name + "\n" + told.directory + "\n" + told.fingerprint + "\n" +
                     std::to_string(told.max_model_len) + "\n";
  for (const std::string& adapter : told.adapters) text += adapter + "\n";
  return std::max<Hive::ModelId>(std::hash<std::string>{}(text + files), 1);  // 0 = not known
}

}  // namespace

Expected<std::vector<std::string>> ask_for_models(const std::string& socket) {
  const auto asked = ask_daemon(socket);
  if (!asked) return forward_error(asked);
  std::vector<std::string> names;
  for (const nlohmann::json& model : asked->models) names.push_back(model.at("name"));
  return names;
}

bool ModelSource::asks_daemon() const {
  return options_.directory.empty() || options_.max_model_len == 0;
}

std::string ModelSource::directory_of(const DaemonModel& told) const {
  return options_.directory.empty() ? told.directory : options_.directory;
}

Expected<DaemonModel> ModelSource::ask() const {
  const auto asked = ask_daemon(options_.socket);
  if (!asked) return forward_error(asked);
  const auto found = find_hosted(asked->models, options_.hosted);
  if (!found) return forward_error(found);
  const nlohmann::json& model = *found;
  DaemonModel told{asked->epoch,
                   model.at("name"),
                   model.at("directory"),
                   model.at("fingerprint"),
                   model.at("max_model_len"),
                   model.at("adapters"),
                   0};
  const std::lock_guard lock(mutex_);
  if (std::exchange(epoch_, told.epoch) != told.epoch)
    id_ = id_of(told, state_of_files(directory_of(told)));
  told.id = id_;
  return told;
}

Expected<LoadedModel> ModelSource::load(const DaemonModel& told) const {
  const std::string directory = directory_of(told);
  std::string name = options_.name.empty() ? told.name : options_.name;
  if (name.empty()) name = std::filesystem::absolute(directory).filename().string();
  if (std::ranges::find(told.adapters, name) != told.adapters.end())
    return failure(Errc::bad_argument, "served-model-name '" + name +
                                           "' is the name of an adapter of the daemon; choose "
                                           "another");
  auto model = ServedModel::load(
      name, directory, options_.max_model_len != 0 ? options_.max_model_len : told.max_model_len);
  if (!model) return forward_error(model);
  model->adapters = told.adapters;
  model->id = told.id;
  auto chat = find_chat_template(directory, options_.chat_template);
  if (!chat) return forward_error(chat);
  const ToolFormat tools = options_.tools ? *options_.tools
                           : *chat        ? (*chat)->tool_format()
                                          : ToolFormat::none;
  return LoadedModel{std::move(*model), std::move(*chat), tools};
}

}  // namespace kvhive
