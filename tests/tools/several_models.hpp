#pragma once
// Three small models, what each says alone, and what they say as one daemon's.

#include <functional>
#include <map>

#include "tests/tools/small_model.hpp"
#include "tests/tools/whole_answers.hpp"
#include "tests/tools/windowed_models.hpp"

namespace kvhive::testing {

/// Full attention in 16 tokens a block, in 32 a block, and two groups with windows.
struct Models {
  SmallModel small{};
  WindowedModel hybrid = WindowedModel::qwen(64, 2);

  std::map<std::string, std::string> directories() const {
    return {{"demo", kDemoModel}, {"hybrid", hybrid.path()}, {"small", small.path()}};
  }
  std::vector<std::string> flags(std::vector<std::string> more) const {
    for (const auto& [name, directory] : directories())
      more.insert(more.end(), {"--model", name + "=" + directory});
    return more;
  }
};

using Requests = std::vector<GenerateRequest>;

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
inline std::map<std::string, Tokens> alone(const Models& models, const Requests& requests,
                                           const std::vector<std::string>& more = {},
                                           const std::function<void()>& before = {}) {
  std::map<std::string, Tokens> tokens;
  for (const auto& [name, directory] : models.directories()) {
    std::vector<std::string> flags = {
        "--model", directory, "--kv-cache-memory-bytes", "32M", "--enable-prefix-caching", "false"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Daemon daemon(flags, before);
    std::vector<Client> clients;
    clients.push_back(daemon.connect());
    tokens[name] = tokens_of(generate_all(clients, requests));
  }
  return tokens;
}

/// The same requests to all models at once.
inline std::map<std::string, Tokens> together(const Daemon& daemon, const Models& models,
                                              const Requests& requests) {
  std::map<std::string, std::vector<RequestId>> asked;
  std::map<std::string, Client> clients;
  for (const auto& [name, directory] : models.directories()) {
    Client& client = clients.emplace(name, connect_to(daemon, name)).first->second;
    for (const GenerateRequest& request : requests) asked[name].push_back(*client.submit(request));
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
