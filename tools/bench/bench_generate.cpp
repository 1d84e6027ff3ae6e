// Measures a running daemon end to end: tokens per second at several loads, and how much time a
// prefix hit saves.

#include <cstdio>
#include <map>
#include <string>

#include "kvhive/client.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

[[noreturn]] void fail(const ClientError& error) {
  std::fprintf(stderr, "bench_generate: %s\n", error.text.c_str());
  std::exit(1);
}

GenerateRequest request_of(std::size_t prompt_tokens, std::uint32_t max_tokens, TokenId salt) {
  GenerateRequest request;
  for (std::size_t i = 0; i < prompt_tokens; ++i)
    request.prompt_tokens.push_back(
        static_cast<TokenId>((i * 31 + static_cast<std::size_t>(salt) * 7919) % 1900 + 1));
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

Client connect(std::uint32_t engine) {
  ClientOptions options;
  options.engine = engine;
  options.channel_bytes = std::size_t{16} << 20;  // 64 requests at once
  auto client = Client::connect(options);
  if (!client) fail(client.error());
  return std::move(*client);
}

void run_all(Client& client, const std::vector<GenerateRequest>& requests) {
  std::map<RequestId, bool> open;
  for (const GenerateRequest& request : requests) {
    auto number = client.submit(request);
    if (!number) fail(number.error());
    open[*number] = true;
  }
  while (!open.empty()) {
    if (auto woken = client.wait(); !woken) fail(woken.error());
    std::erase_if(
        open, [&](const auto& entry) { return client.read(entry.first)->reason != Finish::none; });
  }
}

double ttft_ms(Client& client, const GenerateRequest& request) {
  return 1e3 * seconds_of([&] { run_all(client, {request}); });
}

void measure_throughput(std::uint32_t tokens) {
  Client client = connect(0);
  std::printf("Decode, one engine\n  %9s %12s\n", "sequences", "tokens/s");
  TokenId salt = 1;
  run_all(client, {request_of(64, 8, salt++)});  // the first steps of an engine are slower
  for (const std::size_t sequences : {1, 8, 64}) {
    std::vector<GenerateRequest> requests;
    for (std::size_t i = 0; i < sequences; ++i) requests.push_back(request_of(64, tokens, salt++));
    const double seconds = seconds_of([&] { run_all(client, requests); });
    std::printf("  %9zu %12.0f\n", sequences, static_cast<double>(sequences * tokens) / seconds);
  }
}

/// Runs a prompt on engine 0, then on engine 1, which finds the blocks of engine 0, and then on
/// engine 1 again.
void measure_prefix_hit(int rounds) {
  Client first = connect(0), second = connect(1);
  std::vector<double> cold, other, ratio;
  for (int i = 0; i < rounds; ++i) {
    const GenerateRequest request = request_of(2000, 1, 5000 + i);
    cold.push_back(ttft_ms(first, request));
    other.push_back(ttft_ms(second, request));
    ratio.push_back(cold.back() / other.back());
  }
  std::printf(
      "Time to first token, 2,000 tokens: computed %.1f ms, hit in the other engine's blocks %.2f "
      "ms, ratio %.0f\n",
      median(cold), median(other), median(ratio));
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  kvhive::bench::measure_throughput(is_brief ? 32 : 256);
  kvhive::bench::measure_prefix_hit(is_brief ? 3 : 9);
}
