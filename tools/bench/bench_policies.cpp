// What eviction policies find in recorded traffic, and in traffic made by Zipf's law: the pool's
// own ones by a real pool, others by simulation (tools/replay/simulated_policy.hpp). usage:
// bench_policies [--brief] [TRACE:BLOCK_TOKENS:BLOCKS,BLOCKS,... ...]

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <string_view>

#include "tools/replay/replay.hpp"
#include "tools/replay/simulated_policy.hpp"

namespace kvhive::bench {
namespace {

constexpr std::size_t kPolicies = names_of(SimulatedPolicy{}).size();

struct Traffic {
  std::string name;
  std::vector<TraceRequest> requests;
  std::uint32_t block_tokens;
  std::vector<std::uint32_t> capacities;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_policies: %s\n", text.c_str());
  std::exit(1);
}

/// Questions about documents: a document of 16 blocks, drawn by Zipf's law, and four blocks that
/// nobody asks again.
Traffic zipf(std::size_t requests, double exponent) {
  constexpr std::size_t kDocuments = 4'000, kShared = 16, kOwn = 4;
  std::vector<double> weights(kDocuments);
  for (std::size_t rank = 0; rank < kDocuments; ++rank)
    weights[rank] = std::pow(double(rank + 1), -exponent);
  std::discrete_distribution<std::uint64_t> draw(weights.begin(), weights.end());
  std::mt19937_64 random(1);
  char name[64];
  std::snprintf(name, sizeof name, "Zipf, exponent %.1f", exponent);
  Traffic traffic{name, {}, 16, {1'000, 4'000, 16'000}};
  std::uint64_t next_own = kDocuments * kShared;
  for (std::size_t i = 0; i < requests; ++i) {
    TraceRequest request;
    request.input_tokens = (kShared + kOwn) * traffic.block_tokens;
    const std::uint64_t document = draw(random);
    for (std::size_t k = 0; k < kShared; ++k) request.content.push_back(document * kShared + k);
    for (std::size_t k = 0; k < kOwn; ++k) request.content.push_back(next_own++);
    traffic.requests.push_back(std::move(request));
  }
  return traffic;
}

/// "FILE:512:1000,5000"
Traffic traffic_of(const std::string& text) {
  const std::size_t blocks = text.rfind(':');
  const std::size_t tokens = blocks == std::string::npos ? blocks : text.rfind(':', blocks - 1);
  if (tokens == std::string::npos)
    fail("'" + text + "' is not FILE:BLOCK_TOKENS:BLOCKS,BLOCKS,...");
  const std::string path = text.substr(0, tokens);
  auto requests = read_trace(path, 0);
  if (!requests) fail(requests.error().text);
  Traffic traffic{path.substr(path.rfind('/') + 1),
                  std::move(*requests),
                  std::uint32_t(std::atoi(text.c_str() + tokens + 1)),
                  {}};
  std::istringstream list(text.substr(blocks + 1));
  for (std::string number; std::getline(list, number, ',');)
    traffic.capacities.push_back(std::uint32_t(std::atoi(number.c_str())));
  if (traffic.block_tokens == 0 || traffic.capacities.empty()) fail("'" + text + "': give numbers");
  return traffic;
}

std::uint64_t found_by_pool(const Traffic& traffic, std::uint32_t blocks, EvictionPolicy policy) {
  ReplayOptions options;
  options.block_tokens = traffic.block_tokens;
  options.blocks = blocks;
  options.policy = policy;
  const auto result = replay(traffic.requests, options, [](std::size_t) {});
  if (!result) fail(result.error().text);
  return result->hit_blocks;
}

std::uint64_t found(const Traffic& traffic, std::uint32_t blocks, SimulatedPolicy policy) {
  if (policy == SimulatedPolicy::lru) return found_by_pool(traffic, blocks, EvictionPolicy::lru);
  if (policy == SimulatedPolicy::second_chance)
    return found_by_pool(traffic, blocks, EvictionPolicy::second_chance);
  const auto hits = simulate(traffic.requests, traffic.block_tokens, blocks, policy);
  return std::accumulate(hits.begin(), hits.end(), std::uint64_t{0});
}

void print(const Traffic& traffic) {
  std::uint64_t full = 0;
  for (const TraceRequest& request : traffic.requests)
    full += request.full_blocks(traffic.block_tokens);
  std::printf("%s: %zu requests, %llu full blocks; %% of them that are hits\n%10s",
              traffic.name.c_str(), traffic.requests.size(), (unsigned long long)full, "blocks");
  for (const std::string_view name : names_of(SimulatedPolicy{}))
    std::printf("  %s", std::string(name).c_str());
  std::printf("\n");
  for (const std::uint32_t blocks : traffic.capacities) {
    std::printf("%10u", blocks);
    for (std::size_t p = 0; p < kPolicies; ++p) {
      const std::uint64_t hits = found(traffic, blocks, SimulatedPolicy(p));
      std::printf("  %*.2f", int(names_of(SimulatedPolicy{})[p].size()),
                  100.0 * double(hits) / double(full));
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  std::printf("\n");
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  std::size_t requests = 20'000;
  std::vector<Traffic> all;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--brief")
      requests = 500;
    else
      all.push_back(traffic_of(argv[i]));
  }
  if (all.empty())
    for (const double exponent : {0.7, 1.0, 1.3}) all.push_back(zipf(requests, exponent));
  for (const Traffic& traffic : all) print(traffic);
}
