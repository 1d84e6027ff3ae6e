// kvhive generate: one prompt, streamed.

#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/byte_size.hpp"
#include "ipc/channel/generation.hpp"
#include "kvhive/client.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/prompt.hpp"
#include "tools/cli/token_rule_flags.hpp"

namespace kvhive {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

struct GenerateFlags {
  CommonFlags common;
  PromptFlags prompt;
  TokenRuleFlags rules;
  std::int64_t engine = 0;
  const CLI::Option* engine_option = nullptr;
  std::int64_t max_tokens = 64;
  std::int64_t logprobs = 0, prompt_logprobs = 0;
  const CLI::Option* prompt_logprobs_option = nullptr;
  std::uint64_t seed = 0;
  std::string stop_token_ids;
  std::string channel_bytes;  ///< empty = what the request needs
  std::string model;
  GenerateRequest request;
};

struct Timing {
  Clock::time_point start = Clock::now();
  double ttft_ms = 0;
  double total_ms = 0;
  /// Tokens that were there at ttft_ms: a fast engine may be several ahead of this process.
  std::size_t first_tokens = 0;

  /// The speed of decoding, if there were tokens after the first ones; else of the whole request.
  double tokens_per_second(std::size_t tokens) const {
    const bool saw_decoding = tokens > 2 * first_tokens;
    const double ms = saw_decoding ? total_ms - ttft_ms : total_ms;
    return ms > 0 ? static_cast<double>(saw_decoding ? tokens - first_tokens : tokens) / ms * 1e3
                  : 0;
  }

  double elapsed_ms() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
};

tl::unexpected<Error> bad_value(const std::string& flag, std::int64_t value,
                                const std::string& remedy) {
  return failure(Errc::bad_argument, flag + " is " + std::to_string(value) + "; " + remedy);
}

/// Nothing unless --engine is given.
Expected<std::optional<std::uint32_t>> engine_of(const GenerateFlags& flags) {
  if (flags.engine_option->count() == 0) return std::nullopt;
  if (flags.engine < 0 || flags.engine >= std::numeric_limits<std::uint32_t>::max())
    return bad_value("--engine", flags.engine,
                     "engines are numbered from 0 (kvhive pool procs lists them)");
  return static_cast<std::uint32_t>(flags.engine);
}

Expected<GenerateRequest> request_of(GenerateFlags& flags) {
  GenerateRequest request = flags.request;
  auto prompt = flags.prompt.read();
  if (!prompt) return forward_error(prompt);
  request.prompt = std::move(prompt->text);
  request.prompt_tokens = std::move(prompt->tokens);
  if (flags.max_tokens < 1 || flags.max_tokens > 10'000'000)
    return bad_value("--max-tokens", flags.max_tokens, "ask for at least 1, at most 10000000");
  if (flags.logprobs < 0 || flags.logprobs > int{kMostLogprobs})
    return bad_value("--logprobs", flags.logprobs, "use 0.." + std::to_string(kMostLogprobs));
  if (!flags.stop_token_ids.empty()) {
    auto ids = parse_token_ids("--stop-token-ids", flags.stop_token_ids);
    if (!ids) return forward_error(ids);
    request.stop_token_ids = std::move(*ids);
  }
  request.max_tokens = static_cast<std::uint32_t>(flags.max_tokens);
  request.logprobs = static_cast<std::uint32_t>(flags.logprobs);
  if (flags.prompt_logprobs_option->count() != 0) {
    if (flags.prompt_logprobs < 0 || flags.prompt_logprobs > int{kMostLogprobs})
      return bad_value("--prompt-logprobs", flags.prompt_logprobs,
                       "use 0.." + std::to_string(kMostLogprobs));
    request.prompt_logprobs = static_cast<std::uint32_t>(flags.prompt_logprobs);
  }
  if (auto read = flags.rules.read(request); !read) return forward_error(read);
  return request;
}

Json to_json(const std::vector<TokenLogprob>& top) {
  Json json = Json::array();
  for (const TokenLogprob& entry : top)
    json.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
  return json;
}

Json to_json(const Progress& result, const Timing& timing) {
  Json json = {{"text", result.text},
               {"prompt_tokens", result.prompt_tokens},
               {"cached_tokens", result.cached_tokens},
               {"preemptions", result.preemptions},
               {"finish_reason", to_string(result.reason)},
               {"engine", result.engine.value_or(0)},
               {"ttft_ms", timing.ttft_ms},
               {"total_ms", timing.total_ms}};
  json["tokens_per_second"] = timing.tokens_per_second(result.tokens.size());
  json["token_ids"] = Json::array();
  json["logprobs"] = Json::array();
  for (const OutputToken& token : result.tokens) {
    json["token_ids"].push_back(token.token);
    json["logprobs"].push_back({{"logprob", token.logprob}, {"top", to_json(token.top)}});
  }
  for (const PromptLogprob& token : result.prompt)
    json["prompt_logprobs"].push_back({{"token", token.token},
                                       {"logprob", token.rank == 0 ? Json() : Json(token.logprob)},
                                       {"rank", token.rank},
                                       {"top", to_json(token.top)}});
  return json;
}

void print_summary(const Json& json) {
  std::fprintf(stderr,
               "[engine %d] prompt %d tokens, %d cached; ttft %.1f ms; %zu tokens at %.0f "
               "tokens/s; finish: %s\n",
               json["engine"].get<int>(), json["prompt_tokens"].get<int>(),
               json["cached_tokens"].get<int>(), json["ttft_ms"].get<double>(),
               json["token_ids"].size(), json["tokens_per_second"].get<double>(),
               json["finish_reason"].get<std::string>().c_str());
}

Expected<ClientOptions> client_options(const GenerateFlags& flags, const GenerateRequest& request) {
  ClientOptions options;
  options.socket = flags.common.socket_path();
  auto engine = engine_of(flags);
  if (!engine) return forward_error(engine);
  options.engine = *engine;
  options.model = flags.model;
  options.channel_bytes = channel_bytes_for(request);
  if (flags.channel_bytes.empty()) return options;
  const auto bytes = parse_bytes(flags.channel_bytes);
  if (!bytes) return failure(bytes.error().code, "--channel-bytes: " + bytes.error().text);
  options.channel_bytes = *bytes;
  return options;
}

/// Says once on standard error that no engine works on the request, after a second of it.
class NoEngineNotice {
 public:
  void look(const Progress& news, const Client& client, const Timing& timing) {
    if (news.engine || news.reason != Finish::none) return;
    if (is_said_ || timing.elapsed_ms() < 1000) return;
    is_said_ = true;
    const auto serving = client.status().engine;
    std::fprintf(stderr, "kvhive: waiting: %s\n",
                 serving ? ("engine " + std::to_string(*serving) +
                            " has not accepted the request yet; it is starting, busy, "
                            "drained or stopped")
                               .c_str()
                         : "no engine serves the request; the daemon has to start one (kvhive pool "
                           "procs shows them)");
  }

 private:
  bool is_said_ = false;
};

Expected<void> generate(GenerateFlags& flags) {
  auto request = request_of(flags);
  if (!request) return forward_error(request);
  const auto options = client_options(flags, *request);
  if (!options) return forward_error(options);
  auto client = Client::connect(*options);
  if (!client) return as_failure(client.error());

  Timing timing;
  NoEngineNotice no_engine;
  const bool streams = flags.common.output() == Format::human;
  auto result = client->generate(*request, [&](const Progress& news) {
    no_engine.look(news, *client, timing);
    if (!news.tokens.empty() && timing.ttft_ms == 0) {
      timing.ttft_ms = timing.elapsed_ms();
      timing.first_tokens = news.tokens.size();
    }
    if (!streams) return;
    std::fwrite(news.text.data(), 1, news.text.size(), stdout);
    std::fflush(stdout);
  });
  timing.total_ms = timing.elapsed_ms();
  if (!result) return as_failure(result.error());
  if (result->reason == Finish::error) return as_failure(result->error);
  const Json json = to_json(*result, timing);
  if (streams) {
    std::printf("\n");
    std::fflush(stdout);
    print_summary(json);
  } else {
    std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }
  return {};
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "generate text from a prompt, streaming it");
  flags->common.add_to(*command);
  GenerateRequest& params = flags->request;
  flags->prompt.add_to(*command, "--prompt");
  flags->engine_option =
      command
          ->add_option(
              "--engine", flags->engine,
              "the engine that serves the request, by number; without it the engines take turns")
          ->default_str("");
  command->add_option("--model", flags->model,
                      "the model that answers, by name; without it the daemon's first");
  command->add_option("--max-tokens", flags->max_tokens, "most tokens to generate");
  command->add_option("--temperature", params.temperature,
                      "how random the choice of tokens is; 0 = always the likeliest token");
  command->add_option("--top-k", params.top_k, "only the k likeliest tokens; 0 = all");
  command->add_option("--top-p", params.top_p,
                      "only the likeliest tokens that make up this probability");
  command->add_option(
      "--min-p", params.min_p,
      "only tokens whose probability is at least this share of the likeliest token's");
  command->add_option(
      "--seed", flags->seed,
      "two requests that differ in nothing and have the same seed get the same tokens");
  command->add_option("--stop", params.stop, "end before this text; may be given several times")
      ->allow_extra_args(false)
      ->default_str("");
  flags->rules.add_to(*command, params);
  command->add_option("--stop-token-ids", flags->stop_token_ids, "end after any of these tokens")
      ->type_name("ID,ID,...")
      ->default_str("");
  command
      ->add_option("--cache-salt", params.cache_salt,
                   "share cached blocks only with requests that have this salt, at most 128 bytes")
      ->default_str("");
  command
      ->add_option("--adapter", params.adapter,
                   "compute with this LoRA adapter, as --lora-modules of the daemon names it")
      ->default_str("");
  command->add_option("--priority", params.priority,
                      "a lower number goes first, if the daemon has --scheduling-policy priority");
  command->add_option("--logprobs", flags->logprobs,
                      "report so many of the likeliest tokens of each position");
  flags->prompt_logprobs_option = command->add_option(
      "--prompt-logprobs", flags->prompt_logprobs,
      "score the prompt: report how likely each of its tokens is, and so many of the likeliest in "
      "its place (in --format json); none of it is read from the cache");
  command->add_option("--channel-bytes", flags->channel_bytes,
                      "shared memory for prompt and output, 1 MiB to 1 GiB (default: what the "
                      "request needs)");
  command->add_flag("--ignore-eos", params.ignore_eos, "go on after an end-of-sequence token");
  command->callback([flags, command, &exit_code] {
    if (command->count("--seed") > 0) flags->request.seed = flags->seed;
    if (auto done = generate(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
