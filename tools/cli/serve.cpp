// kvhive serve: the OpenAI-compatible HTTP service.

#include "tools/serve/serve.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "config/options.hpp"
#include "tools/cli/command.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/serve/trace/span_file.hpp"

namespace kvhive {
namespace {

/// As vLLM names them. Any other word: what the template shows.
const std::map<std::string, ToolFormat> kToolFormats = {{"none", ToolFormat::none},
                                                        {"hermes", ToolFormat::hermes},
                                                        {"llama3_json", ToolFormat::llama3_json},
                                                        {"mistral", ToolFormat::mistral}};

const std::map<std::string, SaltCallers> kSaltCallers = {
    {"trusted", SaltCallers::trusted}, {"all", SaltCallers::all}, {"none", SaltCallers::none}};

struct ServeFlags {
  CommonFlags common;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string model;
  std::vector<std::string> serve_models;
  std::uint32_t max_model_len = 0;
  std::string served_model_name;
  std::string chat_template;
  std::string tool_call_parser = "auto";
  std::string api_key_file;
  std::string cache_salts = "trusted";
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  std::string trace_file;
  std::string max_body_bytes = "8M";
  bool enable_prompt_embeds = false;
  std::uint32_t keep_alive_s = 10;
  std::uint32_t daemon_timeout_s = 0, shutdown_timeout_s = 0;
  std::size_t max_connections = HttpLimits{}.connections;
  bool metrics_old_names = false;
  LogLevel log_level = LogLevel::info;
  std::string log_file;
};

Expected<void> serve_with(const ServeFlags& flags) {
  // The loop must not wait for whoever reads its lines, nor mix them with what it says when ready.
  if (auto started = start_log("serve", std::string(to_string(flags.log_level)), flags.log_file);
      !started)
    return started;
  ServeOptions options;
  options.socket = flags.common.socket_path();
  options.host = flags.host;
  options.port = flags.port;
  options.http.connections = flags.max_connections;
  options.metrics_old_names = flags.metrics_old_names ? OldNames::too : OldNames::left_out;
  options.service.keep_alive = std::chrono::seconds(flags.keep_alive_s);
  options.daemon_timeout = std::chrono::seconds(flags.daemon_timeout_s);
  options.shutdown_timeout = std::chrono::seconds(flags.shutdown_timeout_s);
  const auto body = parse_bytes(flags.max_body_bytes);
  if (!body) return failure(body.error().code, "--max-body-bytes: " + body.error().text);
  options.http.body_bytes = *body;
  options.http.all_body_bytes = std::max(options.http.all_body_bytes, 4 * *body);
  // What a body says may take more: token ids of one digit 2 times its bytes, embeddings 1.5 times.
  options.hive.largest = std::max(options.hive.largest, 2 * *body);
  options.hive.waiting_bytes = std::max(options.hive.waiting_bytes, options.hive.largest);
  if (flags.enable_prompt_embeds) options.service.prompt_embeds = PromptEmbeds::taken;
  if (!flags.api_key_file.empty()) {
    auto keys = ApiKeys::load(flags.api_key_file);
    if (!keys) return forward_error(keys);
    options.service.api_keys = std::move(*keys);
    options.service.api_key_file = flags.api_key_file;
  }
  if (!flags.trace_file.empty()) {
    auto spans = SpanFile::open(flags.trace_file);
    if (!spans) return forward_error(spans);
    options.service.spans = std::move(*spans);
  }
  auto hosts = Hosts::parse(flags.allowed_hosts);
  if (!hosts) return forward_error(hosts);
  options.service.hosts = std::move(*hosts);
  auto origins = Origins::parse(flags.allowed_origins);
  if (!origins) return forward_error(origins);
  options.service.origins = std::move(*origins);
  options.service.salt_callers = kSaltCallers.at(flags.cache_salts);
  options.serve_models = flags.serve_models;
  const auto tools = kToolFormats.find(flags.tool_call_parser);
  options.model = {options.socket,
                   {},
                   flags.served_model_name,
                   flags.model,
                   flags.max_model_len,
                   flags.chat_template,
                   tools != kToolFormats.end() ? std::optional(tools->second) : std::nullopt};
  return serve(options, [&](const std::string& model, std::uint16_t port) {
    const bool is_v6 = flags.host.find(':') != std::string::npos;
    std::printf("ready: %s on http://%s%s%s:%u\n", model.c_str(), is_v6 ? "[" : "",
                flags.host.c_str(), is_v6 ? "]" : "", port);
    std::fflush(stdout);
  });
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand(
      "serve", "serve the hive over HTTP, in OpenAI's form; may be run several times");
  command
      ->add_option(
          "--host", flags->host,
          "address to listen on; others than this machine's need a proxy in front, for TLS")
      ->capture_default_str();
  command->add_option("--port", flags->port, "0 = any that is free")->capture_default_str();
  command
      ->add_option("--model", flags->model,
                   "model directory; by default the daemon's, if this user may ask it")
      ->type_name("DIR");
  command
      ->add_option("--serve-model", flags->serve_models,
                   "of a daemon with several models, those to serve; a request names one of them "
                   "(model), or has the first")
      ->type_name("NAME ...")
      ->default_str("all");
  command
      ->add_option("--max-model-len", flags->max_model_len,
                   "most tokens of a request, prompt and output together; 0 = the daemon's")
      ->type_name("TOKENS")
      ->capture_default_str();
  command
      ->add_option("--served-model-name", flags->served_model_name,
                   "the model's name in requests and answers; by default its directory's")
      ->type_name("NAME");
  command
      ->add_option("--chat-template", flags->chat_template,
                   "instead of the model's own: a file with Jinja2; it is rendered in a process "
                   "that can do nothing else")
      ->type_name("FILE");
  command
      ->add_option("--tool-call-parser", flags->tool_call_parser,
                   "how the model writes calls of tools; auto = as its chat template shows")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "none", "hermes", "llama3_json", "mistral"}))
      ->capture_default_str();
  command
      ->add_option(
          "--api-key-file", flags->api_key_file,
          "one KEY or KEY DOMAIN a line: requests below /v1, and /tokenize and /detokenize, must "
          "carry one of the keys, and run in its domain, as far as the daemon's rules allow")
      ->type_name("FILE");
  command
      ->add_option("--cache-salts", flags->cache_salts,
                   "whose cache_salt is taken: trusted = callers with an API key, or without "
                   "--api-key-file those of this machine; all; none")
      ->type_name("WHOSE")
      ->check(CLI::IsMember({"trusted", "all", "none"}))
      ->capture_default_str();
  command
      ->add_option("--allowed-hosts", flags->allowed_hosts,
                   "further names by which this service may be called (header Host), as "
                   "kv.example, *.example; addresses, localhost and this machine's name always "
                   "may; * = any")
      ->type_name("NAME ...")
      ->default_str("none");
  command
      ->add_option("--allowed-origins", flags->allowed_origins,
                   "web pages of these origins may ask and read answers (CORS), as "
                   "https://chat.example; * = all")
      ->type_name("ORIGIN ...")
      ->default_str("none");
  command
      ->add_option("--trace-file", flags->trace_file,
                   "gets a line of JSON for each answer: a span, in the caller's trace if the "
                   "request has a traceparent")
      ->type_name("FILE");
  command
      ->add_option("--wait-for-daemon", flags->daemon_timeout_s,
                   "how long to wait for a daemon if none serves yet; 0 = not at all")
      ->type_name("SECONDS")
      ->capture_default_str();
  command
      ->add_option("--shutdown-timeout", flags->shutdown_timeout_s,
                   "how long requests under way may go on after SIGTERM; then, and after a second "
                   "signal, they are ended")
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--max-body-bytes", flags->max_body_bytes, "the largest request")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_flag("--enable-prompt-embeds", flags->enable_prompt_embeds,
                    "prompt_embeds is taken: prompts as embeddings, some kilobytes a token, so "
                    "--max-body-bytes is to be raised");
  command
      ->add_option("--max-connections", flags->max_connections,
                   "connections at a time; for one more, the one that has waited longest for "
                   "its request is closed")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{16}, std::size_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--sse-keep-alive-interval", flags->keep_alive_s,
                   "a stream that is silent for so long gets a comment; 0 = none")
      ->type_name("SECONDS")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command->add_flag("--metrics-old-names", flags->metrics_old_names,
                    "/metrics also has names that vLLM has given up and production-stack reads");
  add_choice<LogLevel>(*command, "--log-level", flags->log_level,
                       "the least important messages that are logged")
      ->default_str("info");
  command
      ->add_option("--log-file", flags->log_file,
                   "file that the log is appended to, with dates, reopened on SIGHUP; without it "
                   "the log goes to standard error")
      ->type_name("FILE");
  flags->common.add_to(*command);
  command->callback([flags, &exit_code] {
    if (auto done = serve_with(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
