#include "tools/serve/model/first_models.hpp"

#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"

namespace kvhive {
namespace {

struct AskedModel {
  ModelOptions options;
  DaemonModel told;
};
using AskedModels = std::vector<AskedModel>;

/// What the operator has said of one model means one.
Expected<void> check_says_nothing_of_one(const ModelOptions& options,
                                         const std::vector<std::string>& served) {
  const std::vector<std::pair<std::string, bool>> said = {
      {"--model", !options.directory.empty()},
      {"--served-model-name", !options.name.empty()},
      {"--max-model-len", options.max_model_len != 0},
      {"--chat-template", !options.chat_template.empty()},
      {"--tool-call-parser", options.tools.has_value()}};
  for (const auto& [flag, is_said] : said)
    if (is_said)
      return failure(Errc::bad_argument,
                     fmt::format("{} is of one model, and {} would be served; choose one with "
                                 "--serve-model, or leave it out",
                                 flag, fmt::join(served, ", ")));
  return {};
}

/// All of them before any is loaded: a daemon that ends meanwhile is waited for.
Expected<AskedModels> ask(const ModelOptions& options, std::vector<std::string> served) {
  const bool are_chosen = !served.empty();
  const bool asks = ModelSource(options).asks_daemon();
  if (asks && !are_chosen) {
    auto names = ask_for_models(options.socket);
    if (!names) return forward_error(names);
    if (names->size() > 1) served = std::move(*names);
  }
  if (served.empty()) served = {""};
  if (const std::set<std::string> once(served.begin(), served.end()); once.size() != served.size())
    return failure(Errc::bad_argument, fmt::format("--serve-model: {}: a model is named twice",
                                                   fmt::join(served, ", ")));
  if (served.size() > 1)
    if (auto checked = check_says_nothing_of_one(options, served); !checked)
      return forward_error(checked);
  AskedModels all;
  for (const std::string& name : served) {
    ModelOptions one = options;
    one.hosted = name;
    auto told = asks ? ModelSource(one).ask() : DaemonModel{};
    if (!told)
      return failure(told.error().code,
                     (are_chosen && told.error().code == Errc::not_found ? "--serve-model: " : "") +
                         told.error().text);
    all.push_back({std::move(one), std::move(*told)});
  }
  return all;
}

Expected<AskedModels> ask_patiently(const ModelOptions& options,
                                    const std::vector<std::string>& chosen,
                                    std::chrono::seconds patience) {
  constexpr std::chrono::milliseconds kPause{100};
  const auto end = std::chrono::steady_clock::now() + patience;
  for (bool has_said = false;;) {
    auto asked = ask(options, chosen);
    if (asked) return asked;
    const Error& why = asked.error();
    if (why.code == Errc::bad_argument || why.code == Errc::not_found) return asked;
    const bool may_come = why.code == Errc::not_running || why.code == Errc::peer_died;
    if (!may_come || std::chrono::steady_clock::now() + kPause > end)
      return failure(
          why.code,
          why.text + "; a user who may not ask the daemon gives --model and --max-model-len");
    if (!std::exchange(has_said, true))
      spdlog::info("waiting for a daemon, {} s at most: {}", patience.count(), why.text);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Expected<std::vector<ModelServices::First>> first_models(const ModelOptions& options,
                                                         const std::vector<std::string>& chosen,
                                                         std::chrono::seconds patience) {
  auto asked = ask_patiently(options, chosen, patience);
  if (!asked) return forward_error(asked);
  std::vector<ModelServices::First> models;
  for (AskedModel& one : *asked) {
    auto loaded = ModelSource(one.options).load(one.told);
    if (!loaded) return forward_error(loaded);
    models.push_back({std::move(one.options), std::move(*loaded)});
  }
  return models;
}

}  // namespace kvhive
