// kvhive replay: recorded traffic through a pool that this process makes for itself.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "pool/block_word.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/table.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/program/progress_bar.hpp"
#include "tools/replay/replay.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

struct ReplayFlags {
  CommonFlags common;
  std::string trace, mode = "seq";
  std::vector<std::uint32_t> blocks;
  std::size_t limit = 0;
  ReplayOptions options;
};

Json to_json(const ReplayFlags& flags, std::uint32_t blocks, const ReplayResult& r) {
  return {{"trace", flags.trace},
          {"mode", flags.mode},
          {"policy", to_string(flags.options.policy)},
          {"block_tokens", flags.options.block_tokens},
          {"capacity", blocks},
          {"processes", r.processes},
          {"requests", r.requests},
          {"rejected", r.rejected},
          {"truncated", r.truncated},
          {"full_blocks", r.full_blocks},
          {"hit_blocks", r.hit_blocks},
          {"evictions", r.evictions},
          {"hits_sha256", r.hits_sha256},
          {"block_ids_sha256", r.block_ids_sha256},
          {"free_queue_sha256", r.free_queue_sha256},
          {"ns_per_block", r.ns_per_block()}};
}

Expected<void> run(ReplayFlags& flags) {
  auto mode = ReplayMode::parse(flags.mode);
  if (!mode) return forward_error(mode);
  flags.options.mode = *mode;
  auto trace = read_trace(flags.trace, flags.limit);
  if (!trace) return forward_error(trace);
  Json all = Json::array();
  Table table({"blocks", "requests", "rejected", "full blocks", "hits", "hit rate", "evictions",
               "ns/block", "block ids", "free queue"});
  for (const std::uint32_t blocks : flags.blocks) {
    flags.options.blocks = blocks;
    ProgressBar bar("replaying through " + with_commas(blocks) + " blocks");
    auto result =
        replay(*trace, flags.options, [&](std::size_t done) { bar.show(done, trace->size()); });
    if (!result) return forward_error(result);
    all.push_back(to_json(flags, blocks, *result));
    char ns[16];
    std::snprintf(ns, sizeof ns, "%.0f", result->ns_per_block());
    table.add({with_commas(blocks), with_commas(result->requests), with_commas(result->rejected),
               with_commas(result->full_blocks), with_commas(result->hit_blocks),
               percent(result->hit_blocks, result->full_blocks), with_commas(result->evictions), ns,
               result->block_ids_sha256.substr(0, 12), result->free_queue_sha256.substr(0, 12)});
  }
  if (flags.common.output() == Format::json)
    std::printf("%s\n", (all.size() == 1 ? all[0] : all).dump(2).c_str());
  else
    std::printf("%s", table.text().c_str());
  return {};
}

}  // namespace

void add_replay(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "drive a pool with recorded traffic; with the policy lru and one process every "
      "decision is vLLM's");
  flags->common.add_format_to(*command);
  command->add_option("trace", flags->trace, "JSON lines, plain or gzip, with hash_ids or id_runs")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--block-tokens", flags->options.block_tokens,
                   "tokens that a content id stands for")
      ->check(CLI::Range(1u, 1024u));
  command
      ->add_option("--blocks", flags->blocks, "usable blocks of the pool; several sizes: 1000,5000")
      ->required()
      ->delimiter(',')
      ->default_str("")
      ->type_name("N,N,...")
      ->check(CLI::Range(1u, 1u << 30));
  command->add_option("--mode", flags->mode,
                      "seq (one request after the other), fifoN (N requests at once) or decN (N at "
                      "once, each grows by "
                      "its output)");
  add_choice<EvictionPolicy>(*command, "--policy", flags->options.policy,
                             "the pool's eviction policy (docs/POLICIES.md)")
      ->default_str("lru");
  command
      ->add_option(
          "--expand-to", flags->options.expand_to,
          "make tokens of the ids and cut them into blocks of this many tokens; 0 = do not")
      ->check(CLI::Range(1u, 1024u));
  command
      ->add_option("--processes", flags->options.processes,
                   "so many processes over one pool, each with its share of the requests, in "
                   "parallel: what is found depends on who is faster")
      ->check(CLI::Range(1u, kMaxProcesses));
  command->add_option("--limit", flags->limit, "read at most so many requests; 0 = all");
  command->callback([flags, &exit_code] {
    if (auto done = run(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
