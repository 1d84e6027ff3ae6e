#include "tools/events/hive_news.hpp"

#include <algorithm>
#include <cmath>

namespace kvhive {
namespace {

using Json = HiveNews::Json;

const char* to_string(DaemonState state) {
  switch (state) {
    case DaemonState::answering: return "answering";
    case DaemonState::silent: return "silent";
    case DaemonState::ended: return "ended";
  }
  return "";
}

double in_milliseconds(double seconds) { return std::round(seconds * 1e3) / 1e3; }

/// What a death takes along: the blocks stay, but for those it was filling.
Json lost_with(const EngineRow& row) {
  return {{"engine", row.number},
          {"pid", row.pid},
          {"held_blocks", row.held_blocks},
          {"running", row.counted["running"]},
          {"waiting", row.counted["waiting"]}};
}

Json counts_of(const TierReport& tier) {
  return {{"free", tier.free},     {"filling", tier.filling}, {"held", tier.held},
          {"shared", tier.shared}, {"idle", tier.idle},       {"forgotten", tier.forgotten}};
}

bool are_equal(const TierReport& a, const TierReport& b) {
  return a.free == b.free && a.filling == b.filling && a.held == b.held && a.shared == b.shared &&
         a.idle == b.idle && a.forgotten == b.forgotten && a.retired == b.retired;
}

Json described(const ClientRow& client) {
  return {{"pid", client.pid},
          {"uid", client.uid},
          {"program", client.program},
          {"domain", client.domain}};
}

}  // namespace

std::vector<Json> HiveNews::since_last(const Snapshot& now) {
  news_.clear();
  tell_of_daemon(now);
  tell_of_engines(now);
  tell_of_domains(now);
  tell_of_clients(now);
  tell_of_blocks(now);
  daemon_ = now.daemon;
  pool_ = now.pool;
  return std::move(news_);
}

void HiveNews::tell(const char* event, Json details) {
  Json news = {{"event", event}};
  news.update(details);
  news_.push_back(std::move(news));
}

void HiveNews::tell_of_daemon(const Snapshot& now) {
  const bool is_other_pool = pool_.epoch != now.pool.epoch;
  if (daemon_ && daemon_->state == now.daemon.state && daemon_->keeper == now.daemon.keeper &&
      !is_other_pool)
    return;
  Json details = {{"state", to_string(now.daemon.state)},
                  {"keeper", now.daemon.keeper},
                  {"model", now.daemon.model},
                  {"pool", now.pool.epoch},
                  {"is_new_pool", is_other_pool}};
  if (!now.daemon.trouble.empty()) details["trouble"] = now.daemon.trouble;
  tell("daemon", std::move(details));
  if (is_other_pool) forget();
}

/// What was known is another daemon's: it has left, and the new one's is told as if it had just
/// come.
void HiveNews::forget() {
  for (const auto& [number, engine] : engines_)
    tell("engine_left", {{"engine", number}, {"pid", engine.row.pid}});
  for (const auto& [key, client] : clients_) tell("client_left", described(client));
  engines_.clear();
  clients_.clear();
  domains_.clear();
  pool_ = {};
}

void HiveNews::tell_of_engines(const Snapshot& now) {
  for (const EngineRow& row : now.engines) {
    const auto found = engines_.find(row.number);
    if (found == engines_.end()) {
      Engine& known = engines_[row.number];
      known.row = row;
      if (!row.is_well) known.lost = now.seconds;
      Json details = {{"engine", row.number}, {"pid", row.pid}, {"state", row.state}};
      if (!row.model.empty()) details["model"] = row.model;
      tell("engine_joined", std::move(details));
      continue;
    }
    tell_of_process(found->second, row, now.seconds);
    tell_of_state(found->second, row, now.seconds);
    found->second.row = row;
  }
  for (auto known = engines_.begin(); known != engines_.end();) {
    const bool is_here = std::any_of(now.engines.begin(), now.engines.end(),
                                     [&](const auto& row) { return row.number == known->first; });
    if (is_here) {
      ++known;
      continue;
    }
    tell("engine_left", {{"engine", known->first}, {"pid", known->second.row.pid}});
    known = engines_.erase(known);
  }
}

/// Whether the engine is another process than before, or none any more.
void HiveNews::tell_of_process(Engine& known, const EngineRow& row, double seconds) {
  const EngineRow& before = known.row;
  const auto has_ended = [](const EngineRow& engine) {
    return engine.pid == 0 || engine.state == "ended";
  };
  if (!has_ended(before) && (has_ended(row) || row.pid != before.pid)) {
    tell("engine_ended", lost_with(before));
    if (!known.lost) known.lost = seconds;
  }
}

void HiveNews::tell_of_state(Engine& known, const EngineRow& row, double seconds) {
  if (row.pid == known.row.pid && row.state == known.row.state) return;
  if (row.is_well && row.pid != 0 && known.lost) {
    Json details = {{"engine", row.number},
                    {"pid", row.pid},
                    {"state", row.state},
                    {"after_seconds", in_milliseconds(seconds - *known.lost)}};
    if (row.restarts) details["restarts"] = *row.restarts;
    known.lost.reset();
    return tell("engine_serves_again", std::move(details));
  }
  if (!row.is_well && !known.lost) known.lost = seconds;
  if (row.state != known.row.state)
    tell("engine_state",
         {{"engine", row.number}, {"pid", row.pid}, {"from", known.row.state}, {"to", row.state}});
}

void HiveNews::tell_of_domains(const Snapshot& now) {
  for (const DomainRow& row : now.domains)
    if (!std::exchange(domains_[row.name], true)) tell("domain", {{"domain", row.name}});
}

void HiveNews::tell_of_clients(const Snapshot& now) {
  std::map<ClientKey, ClientRow> clients;
  for (const ClientRow& row : now.clients) clients[{row.pid, row.uid, row.domain}] = row;
  for (const auto& [key, row] : clients)
    if (clients_.count(key) == 0) tell("client_connected", described(row));
  for (const auto& [key, row] : clients_)
    if (clients.count(key) == 0) tell("client_left", described(row));
  clients_ = std::move(clients);
}

void HiveNews::tell_of_blocks(const Snapshot& now) {
  const auto added = [&](CounterName name) {
    const std::uint64_t before = pool_.totals[name], after = now.pool.totals[name];
    return after > before ? after - before : 0;
  };
  if (now.pool.resets > pool_.resets)
    tell("cache_reset",
         {{"resets", now.pool.resets},
          {"forgotten_blocks", now.pool.tiers[0].forgotten + now.pool.tiers[1].forgotten}});
  for (const Tier tier : {Tier::device, Tier::host}) {
    const TierReport& before = pool_.tiers[std::size_t(tier)];
    const TierReport& after = now.pool.tiers[std::size_t(tier)];
    if (after.retired > before.retired)
      tell("blocks_retired",
           {{"tier", to_string(tier)}, {"blocks", after.retired - before.retired}});
  }
  if (const auto again = added("preemptions_recompute"), swapped = added("preemptions_swap");
      again + swapped != 0)
    tell("preempted", {{"recompute", again}, {"swap", swapped}});
  const bool is_same =
      are_equal(pool_.tiers[0], now.pool.tiers[0]) && are_equal(pool_.tiers[1], now.pool.tiers[1]);
  const std::uint64_t stored = added("published_blocks"), evicted = added("evicted_blocks"),
                      demoted = added("demoted_blocks"), promoted = added("promoted_blocks");
  if (is_same && stored + evicted + demoted + promoted == 0) return;
  Json details = {{"stored", stored},
                  {"evicted", evicted},
                  {"demoted", demoted},
                  {"promoted", promoted},
                  {"hits", added("hit_blocks")},
                  {"device", counts_of(now.pool.tiers[0])}};
  if (now.pool.tiers[1].blocks != 0) details["host"] = counts_of(now.pool.tiers[1]);
  tell("blocks", std::move(details));
}

}  // namespace kvhive
