// Two models over one pool, against two pools of half the memory each: the load goes from one model
// to the other and back, and what the busy one asks for takes four fifths of the whole memory.
//
// Usage: bench_models SHARED A B [--brief]
//   sockets of a daemon that serves models a and b, and of two daemons with half its blocks each

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvhive/client.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

constexpr std::size_t kPromptBlocks = 16, kBlockTokens = 16;

[[noreturn]] void fail(const ClientError& error) {
  std::fprintf(stderr, "bench_models: %s\n", error.text.c_str());
  std::exit(1);
}

Client connect(const std::string& socket, const std::string& model) {
  ClientOptions options;
  options.socket = socket;
  options.model = model;
  options.channel_bytes = std::size_t{4} << 20;
  auto client = Client::connect(options);
  if (!client) fail(client.error());
  return std::move(*client);
}

GenerateRequest request_of(std::size_t prompt) {
  GenerateRequest request;
  for (std::size_t i = 0; i < kPromptBlocks * kBlockTokens; ++i)
    request.prompt_tokens.push_back(static_cast<TokenId>((i * 31 + prompt * 7919) % 1900 + 1));
  request.max_tokens = 1;
  request.ignore_eos = true;
  return request;
}

/// All prompts once.
struct Pass {
  std::uint64_t prompt_tokens = 0, cached_tokens = 0;
  double seconds = 0;

  double hits() const {
    return 100 * static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  }
};
Pass ask_all(Client& client, std::size_t prompts) {
  Pass pass;
  pass.seconds = seconds_of([&] {
    for (std::size_t prompt = 0; prompt < prompts; ++prompt) {
      const auto result = client.generate(request_of(prompt));
      if (!result) fail(result.error());
      if (result->reason == Finish::error) fail(result->error);
      pass.prompt_tokens += result->prompt_tokens;
      pass.cached_tokens += result->cached_tokens;
    }
  });
  return pass;
}

int run(const std::vector<std::string>& sockets, bool is_brief) {
  constexpr std::size_t kBlocks = 1024;  // as run.sh starts them
  const std::size_t prompts = kBlocks * 4 / 5 / kPromptBlocks;
  const int rounds = is_brief ? 1 : 3, passes = is_brief ? 2 : 4;
  Client shared[] = {connect(sockets[0], "a"), connect(sockets[0], "b")};
  Client halves[] = {connect(sockets[1], ""), connect(sockets[2], "")};
  std::printf(
      "two models, one pool of %zu blocks, or two of %zu; %zu prompts of %zu blocks, again and "
      "again "
      "to one model, then to the other\n%-8s %5s  %12s %12s  %s\n",
      kBlocks, kBlocks / 2, prompts, kPromptBlocks, "model", "pass", "hits, one", "hits, halves",
      "prompt tokens/s, one pool / halves");
  double one = 0, two = 0;
  for (int round = 0; round < rounds; ++round)
    for (const int model : {0, 1})
      for (int pass = 1; pass <= passes; ++pass) {
        const Pass of_one = ask_all(shared[model], prompts);
        const Pass of_two = ask_all(halves[model], prompts);
        one += of_one.seconds;
        two += of_two.seconds;
        std::printf("%-8c %5d  %10.1f %% %10.1f %%  %.2f\n", "ab"[model], pass, of_one.hits(),
                    of_two.hits(), of_two.seconds / of_one.seconds);
      }
  std::printf("in all: %.2f times the prompt tokens a second of the halves\n", two / one);
  return 0;
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  std::vector<std::string> sockets(argv + 1, argv + argc);
  const bool is_brief = std::erase(sockets, "--brief") != 0;
  if (sockets.size() == 3) return kvhive::bench::run(sockets, is_brief);
  std::fprintf(stderr, "usage: bench_models SHARED A B [--brief]\n");
  return 2;
}
