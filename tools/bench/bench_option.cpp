// Answers of a daemon with an option, beside the same without: two daemons that differ in this
// alone, by turns.

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "kvhive/client.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_option: %s\n", text.c_str());
  std::exit(1);
}

Client connect(const std::string& socket) {
  ClientOptions options;
  options.socket = socket;
  options.channel_bytes = std::size_t{32} << 20;
  auto client = Client::connect(options);
  if (!client) fail(client.error().text);
  return std::move(*client);
}

using Answers = std::vector<std::vector<TokenId>>;

Answers run_all(Client& client, const std::vector<GenerateRequest>& requests) {
  Answers answers(requests.size());
  std::map<RequestId, std::size_t> open;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto number = client.submit(requests[i]);
    if (!number) fail(number.error().text);
    open[*number] = i;
  }
  while (!open.empty()) {
    if (auto woken = client.wait(); !woken) fail(woken.error().text);
    std::erase_if(open, [&](const auto& entry) {
      const Progress news = *client.read(entry.first);
      for (const OutputToken& token : news.tokens) answers[entry.second].push_back(token.token);
      return news.reason != Finish::none;
    });
  }
  return answers;
}

struct Load {
  const char* name;
  float temperature;
};
constexpr Load kLoads[] = {{"greedy", 0}, {"sampled at 0.7", 0.7f}};

std::vector<GenerateRequest> requests_of(const std::string& text, const Load& load,
                                         std::size_t sequences, std::uint32_t tokens,
                                         std::size_t round) {
  std::vector<GenerateRequest> requests(sequences);
  for (std::size_t i = 0; i < sequences; ++i) {
    const std::size_t begin = (round * 977 + i * 331) % (text.size() / 2);
    requests[i].prompt = text.substr(begin, 400);
    requests[i].max_tokens = tokens;
    requests[i].temperature = load.temperature;
    requests[i].seed = round * 1000 + i;
    requests[i].ignore_eos = true;
  }
  return requests;
}

void measure(const std::string& text, Client& plain, Client& other, const Load& load,
             std::size_t sequences, std::uint32_t tokens, std::size_t rounds) {
  std::vector<double> with, ratios;
  std::size_t different = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto requests = requests_of(text, load, sequences, tokens, round);
    Answers answers[2];
    const double without = seconds_of([&] { answers[0] = run_all(plain, requests); });
    with.push_back(seconds_of([&] { answers[1] = run_all(other, requests); }));
    ratios.push_back(without / with.back());
    for (std::size_t i = 0; i < sequences; ++i) different += answers[0][i] != answers[1][i];
  }
  const double rate = static_cast<double>(sequences * tokens) / median(with);
  std::printf("  %-15s %9zu %10.0f %7.2f x %10zu of %zu\n", load.name, sequences, rate,
              median(ratios), different, sequences * rounds);
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  if (argc < 5) fail("usage: bench_option NAME TEXT SOCKET SOCKET_WITH_IT [--brief]");
  const bool is_brief = argc > 5;
  std::ostringstream text;
  text << std::ifstream(argv[2]).rdbuf();
  if (text.str().size() < 2000) fail(std::string(argv[2]) + ": needs 2,000 characters of text");
  kvhive::Client plain = connect(argv[3]), other = connect(argv[4]);
  std::printf("%s, beside none\n  %-15s %9s %10s %9s %20s\n", argv[1], "tokens", "sequences",
              "tokens/s", "ratio", "answers that differ");
  for (const Load& load : kLoads)
    for (const std::size_t sequences : {1, 8, 64})
      measure(text.str(), plain, other, load, sequences, is_brief ? 32 : 200, is_brief ? 1 : 9);
}
