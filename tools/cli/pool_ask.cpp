// kvhive pool ask: whether a prompt would find room now, as an engine says (vLLM: can_allocate).

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "kvhive/client.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/prompt.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

/// For scripts: ok is 0, and 1 an error as everywhere.
constexpr int kLaterExit = 2, kNeverExit = 3;

struct AskFlags {
  CommonFlags common;
  PromptFlags prompt;
  std::optional<std::uint32_t> engine;
  std::string domain, model;
  double timeout_s = 10;
  GenerateRequest request;
};

/// Thrown out of Client::ask(): no engine has taken the question in time.
struct NoAnswer {};

Expected<Room> ask(const AskFlags& flags) {
  GenerateRequest request = flags.request;
  auto prompt = flags.prompt.read();
  if (!prompt) return forward_error(prompt);
  request.prompt = std::move(prompt->text);
  request.prompt_tokens = std::move(prompt->tokens);
  ClientOptions options;
  options.socket = flags.common.socket_path();
  options.engine = flags.engine;
  options.domain = flags.domain;
  options.model = flags.model;
  options.channel_bytes = channel_bytes_for(request);
  auto client = Client::connect(options);
  if (!client) return as_failure(client.error());
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(flags.timeout_s);
  try {
    auto room = client->ask(request, [&](const Progress& news) {
      if (!news.engine && std::chrono::steady_clock::now() > end) throw NoAnswer{};
    });
    if (!room) return as_failure(room.error());
    return std::move(*room);
  } catch (const NoAnswer&) {
    Room none;
    none.fit = Fit::later;
    none.text = "no engine has answered in " + fmt::format("{:g}", flags.timeout_s) +
                " s: it is starting, busy, drained or stopped (kvhive pool procs)";
    return none;
  }
}

std::string in_words(const Room& room) {
  if (room.fit == Fit::never) return "NEVER; " + room.text;
  if (!room.text.empty()) return "LATER; " + room.text;
  const std::string numbers = "blocks needed: " + with_commas(room.needed_blocks) +
                              ", available: " + with_commas(room.available_blocks) +
                              "; tokens cached: " + with_commas(room.cached_tokens) + " of " +
                              with_commas(room.prompt_tokens);
  if (room.fit == Fit::ok) return "OK; " + numbers;
  const bool lacks_blocks = room.needed_blocks > room.available_blocks;
  return "LATER; " + numbers +
         (lacks_blocks ? ""
                       : "; but --max-num-seqs requests run, too much waits, or --watermark keeps "
                         "the blocks");
}

int report(const AskFlags& flags, const Room& room) {
  if (flags.common.output() == Format::human) {
    std::printf("%s\n", in_words(room).c_str());
  } else {
    nlohmann::json json = {{"fit", to_string(room.fit)},
                           {"prompt_tokens", room.prompt_tokens},
                           {"cached_tokens", room.cached_tokens},
                           {"needed_blocks", room.needed_blocks},
                           {"available_blocks", room.available_blocks}};
    if (!room.text.empty()) json["text"] = room.text;
    print(json);
  }
  return room.fit == Fit::ok ? 0 : room.fit == Fit::later ? kLaterExit : kNeverExit;
}

}  // namespace

void add_pool_ask(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<AskFlags>();
  CLI::App* command = pool.add_subcommand(
      "ask",
      "whether a prompt finds room now: OK, LATER or NEVER, exit code 0, 2 or 3; nothing is queued "
      "or computed");
  flags->common.add_to(*command);
  flags->prompt.add_to(*command, "prompt,--prompt");
  command->add_option("--engine", flags->engine,
                      "the engine that is asked, by number; without it, any");
  command->add_option("--domain", flags->domain,
                      "asked for a client of this domain (default: your own clients')");
  command->add_option("--model", flags->model,
                      "asked for a request to this model (default: the daemon's first)");
  command->add_option("--adapter", flags->request.adapter,
                      "asked for a request with this adapter (default: the model alone)");
  command->add_option("--cache-salt", flags->request.cache_salt,
                      "asked for a request with this cache salt (default: one without)");
  command
      ->add_option("--timeout", flags->timeout_s,
                   "seconds to wait for an engine that takes questions; then the answer is LATER")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command->callback([flags, &exit_code] {
    const auto room = ask(*flags);
    exit_code = room ? report(*flags, *room) : fail(room.error());
  });
}

}  // namespace kvhive
