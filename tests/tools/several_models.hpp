#pragma once
// Small models, with adapters or without, what each says alone, and what they say as one daemon's.

#include <functional>
#include <initializer_list>
#include <map>

#include "tests/support/demo_adapter.hpp"
#include "tests/tools/golden_model.hpp"
#include "tests/tools/small_model.hpp"
#include "tests/tools/whole_answers.hpp"
#include "tests/tools/windowed_models.hpp"

namespace kvhive::testing {

/// By model, the directories of its adapters by their names.
using AdaptersOfModels = std::map<std::string, std::map<std::string, std::string>>;

/// The models of a daemon, and their adapters.
class NamedModels {
 public:
  /// By the models' names.
  const std::map<std::string, std::string>& directories() const { return directories_; }
  const AdaptersOfModels& adapters() const { return adapters_; }
  std::vector<std::string> flags(std::vector<std::string> more) const {
    for (const auto& [name, directory] : directories_)
      more.insert(more.end(), {"--model", name + "=" + directory});
    for (const auto& [model, own] : adapters_)
      for (const auto& [name, directory] : own)
        more.insert(more.end(), {"--lora-modules", model + ":" + name + "=" + directory});
    return more;
  }
  /// The flags of a daemon with one of them only.
  std::vector<std::string> flags_of(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.end(), {"--model", directories_.at(model)});
    if (const auto own = adapters_.find(model); own != adapters_.end())
      for (const auto& [name, directory] : own->second)
        more.insert(more.end(), {"--lora-modules", name + "=" + directory});
    return more;
  }

 protected:
  std::map<std::string, std::string> directories_{};
  AdaptersOfModels adapters_{};
};

/// Full attention in 16 tokens a block, in 32 a block, and two groups with windows.
struct Models : NamedModels {
  Models() {
    directories_ = {{"demo", kDemoModel}, {"hybrid", hybrid.path()}, {"small", small.path()}};
  }
  explicit Models(AdaptersOfModels adapters) : Models() { adapters_ = std::move(adapters); }

  SmallModel small{};
  WindowedModel hybrid = WindowedModel::qwen(64, 2);
};

/// Adapters of two of the models.
struct AdaptersOfTwo {
  DemoAdapter poet{1}, lawyer{2}, clerk{3, 2};

  Models models() const {
    return Models({{"demo", {{"lawyer", lawyer.path()}, {"poet", poet.path()}}},
                   {"small", {{"clerk", clerk.path()}}}});
  }
};

/// Small random models of these names: latent attention, chunks, windows, experts.
class GoldenModels : public NamedModels {
 public:
  explicit GoldenModels(std::initializer_list<const char*> names) {
    for (const std::string name : names)
      directories_[name] = models_.emplace(name, name).first->second.path();
  }

 private:
  std::map<std::string, GoldenModel> models_;
};

using Requests = std::vector<GenerateRequest>;

/// The requests as they are sent to a model: in turn without an adapter, and with each of its own.
inline Requests requests_to(const NamedModels& models, const std::string& model,
                            Requests requests) {
  std::vector<std::string> names{""};
  if (const auto own = models.adapters().find(model); own != models.adapters().end())
    for (const auto& [name, directory] : own->second) names.push_back(name);
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].adapter = names[i % names.size()];
  return requests;
}

inline Requests requests() { return overlapping_requests(12, 30, 10); }

inline Client connect_to(const Daemon& daemon, const std::string& model,
                         std::optional<std::uint32_t> engine = {}) {
  ClientOptions options = client_options(daemon.socket());
  options.model = model;
  options.engine = engine;
  options.channel_bytes = std::size_t{16} << 20;
  auto client = Client::connect(options);
  KV_CHECK(client.has_value(), client.error().text);
  return std::move(*client);
}

/// What each model says alone, in a daemon of its own.
inline std::map<std::string, Tokens> alone(const NamedModels& models, const Requests& requests,
                                           const std::vector<std::string>& more = {},
                                           const std::function<void()>& before = {}) {
  std::map<std::string, Tokens> tokens;
  for (const auto& [name, directory] : models.directories()) {
    std::vector<std::string> flags = models.flags_of(
        name, {"--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"});
    flags.insert(flags.end(), more.begin(), more.end());
    const Daemon daemon(flags, before);
    std::vector<Client> clients;
    clients.push_back(daemon.connect());
    tokens[name] = tokens_of(generate_all(clients, requests_to(models, name, requests)));
  }
  return tokens;
}

/// The same requests to all models at once.
inline std::map<std::string, Tokens> together(const Daemon& daemon, const NamedModels& models,
                                              const Requests& requests) {
  std::map<std::string, std::vector<RequestId>> asked;
  std::map<std::string, Client> clients;
  for (const auto& [name, directory] : models.directories()) {
    Client& client = clients.emplace(name, connect_to(daemon, name)).first->second;
    for (const GenerateRequest& request : requests_to(models, name, requests))
      asked[name].push_back(*client.submit(request));
  }
  std::map<std::string, Tokens> tokens;
  for (auto& [name, client] : clients) {
    std::vector<Progress> results;
    for (const RequestId request : asked[name]) {
      Progress whole;
      while (whole.reason == Finish::none) {
        Progress news = *client.read(request);
        news.tokens.insert(news.tokens.begin(), whole.tokens.begin(), whole.tokens.end());
        whole = std::move(news);
        if (whole.reason != Finish::none) break;
        EXPECT_TRUE(client.wait(std::chrono::seconds(60)).has_value());
      }
      results.push_back(std::move(whole));
    }
    tokens[name] = tokens_of(results);
  }
  return tokens;
}

inline Json model_row(const Daemon& daemon, const std::string& name) {
  const Json stat = daemon.stat();
  for (const Json& model : stat["models"])
    if (model["name"] == name) return model;
  return {};
}

}  // namespace kvhive::testing
