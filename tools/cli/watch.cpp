// kvhive watch: what happens in the hive, one line of JSON for each event.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "tools/cli/command.hpp"
#include "tools/cli/daemon_view.hpp"
#include "tools/cli/hive_watch.hpp"
#include "tools/events/hive_news.hpp"
#include "tools/events/pool_content.hpp"
#include "tools/program/output.hpp"
#include "tools/program/program.hpp"

namespace kvhive {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Between two questions to the keeper, and for how long the name of a new domain is waited for.
constexpr std::chrono::milliseconds kWatchPause{250};
constexpr std::chrono::milliseconds kWatchNamesLimit = 3 * kWatchPause;

struct WatchFlags {
  CommonFlags common;
  double interval = 0.5;
  std::uint64_t count = 0;
  bool has_blocks = false;
};

/// 2026-11-24T05:00:00.123Z
std::string now_written() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, now.tv_nsec / 1'000'000);
}

std::string written(Hash128 name) { return fmt::format("{:016x}{:016x}", name.high, name.low); }

/// Contents that came and went since the last look.
class BlockNews {
 public:
  std::vector<OrderedJson> since_last(const HiveWatch& watch, const HiveWatch::News& news) {
    std::vector<OrderedJson> all;
    if (news.keeper == HiveWatch::News::Keeper::ended) return all;
    if (!content_ || (hive_ != news.hive && !is_same_pool(*hive_, *news.hive))) {
      hive_ = news.hive;
      content_.emplace(hive_->memory());
    }
    const ContentChange change = content_->read();
    const PoolNames names = watch.names_with(change.newest_domain(), news, kWatchNamesLimit);
    for (const StoredContent& block : change.stored) {
      const auto adapter = names.adapter(block.start);
      all.push_back(
          {{"event", "block_stored"},
           {"block", written(block.name)},
           {"parent", block.parent ? OrderedJson(written(*block.parent)) : OrderedJson(nullptr)},
           {"tier", to_string(block.tier)},
           {"depth", block.depth},
           {"domain", names.domain(block.domain)},
           {"adapter", adapter ? OrderedJson(*adapter) : OrderedJson(nullptr)},
           {"tokens", block.tokens}});
    }
    for (const RemovedContent& block : change.removed)
      all.push_back({{"event", "block_removed"},
                     {"block", written(block.name)},
                     {"tier", to_string(block.tier)}});
    return all;
  }

 private:
  std::shared_ptr<const Inspector> hive_;
  std::optional<PoolContent> content_;
};

Expected<int> watch_hive(const WatchFlags& flags) {
  const auto watch =
      HiveWatch::start(flags.common.socket_path(), kWatchPause,
                       flags.has_blocks ? Privilege::tokens_too : Privilege::metadata_only);
  if (!watch) return forward_error(watch);
  (*watch)->wait_for_first_answer(2 * kWatchPause);
  HiveNews hive_news;
  BlockNews block_news;
  for (std::uint64_t look = 0; flags.count == 0 || look < flags.count; ++look) {
    if (look != 0) std::this_thread::sleep_for(std::chrono::duration<double>(flags.interval));
    const HiveWatch::News news = (*watch)->news();
    std::vector<OrderedJson> events = hive_news.since_last(snapshot_of(news));
    if (flags.has_blocks) {
      std::vector<OrderedJson> blocks = block_news.since_last(**watch, news);
      events.insert(events.end(), blocks.begin(), blocks.end());
    }
    const std::string time = now_written();
    for (const OrderedJson& event : events) {
      OrderedJson line = {{"time", time}};
      line.update(event);
      std::printf("%s\n", line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
    }
    if (auto done = flush_output(); !done) {
      if (done.error().code == Errc::peer_died) return kExitPipeClosed;
      return forward_error(done);
    }
  }
  return 0;
}

}  // namespace

void add_watch(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* command = app.add_subcommand(
      "watch",
      "prints what happens, one line of JSON for each event: first all that is there, then engines "
      "that end and come back, clients, domains, blocks");
  flags->common.add_socket_to(*command);
  command->add_option("--interval", flags->interval, "time between two looks")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->add_option("--count", flags->count, "ends after so many looks; 0 = never")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--blocks", flags->has_blocks,
                    "also each block that is stored or lost, with its tokens");
  command->callback([flags, &exit_code] {
    const auto code = watch_hive(*flags);
    exit_code = code ? *code : fail(code.error());
  });
}

}  // namespace kvhive
