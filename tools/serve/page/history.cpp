#include "tools/serve/page/history.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/serve/page/hive_json.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// What happened since the reading before: nothing is known of another pool, or across a gap.
void add_rates(HiveSecond& second, const HiveReading& before, const HiveReading& now) {
  const double seconds = now.seconds - before.seconds;
  if (before.epoch != now.epoch || seconds <= 0) return;
  const auto grown = [&](CounterName name) {
    const std::uint64_t was = before.statistics.totals[name], is = now.statistics.totals[name];
    return is > was ? static_cast<double>(is - was) : 0.0;
  };
  const double prompt = grown("prompt_tokens");
  second.prompt_rate = prompt / seconds;
  second.generated_rate = grown("generated_tokens") / seconds;
  if (prompt > 0) second.hit_share = std::min(1.0, grown("cached_tokens") / prompt);
  const HistogramValue was = before.statistics.observed["time_to_first_token_seconds"];
  const HistogramValue is = now.statistics.observed["time_to_first_token_seconds"];
  if (is.count() > was.count() && is.sum >= was.sum)
    second.first_token_ms =
        static_cast<double>(is.sum - was.sum) / 1e6 / static_cast<double>(is.count() - was.count());
}

/// The process of each engine. Of two with a number the later one: the earlier is dead.
std::map<std::uint32_t, const ProcessReport*> engines_of(const Statistics& statistics) {
  std::map<std::uint32_t, const ProcessReport*> engines;
  for (const ProcessReport& process : statistics.processes) {
    const ProcessReport*& known = engines[process.index];
    if (known == nullptr || known->started <= process.started) known = &process;
  }
  return engines;
}

Json or_null(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

Json row_of(const HiveSecond& s) {
  if (!s.is_known) return Json::array({s.number, s.unix_time});
  return Json::array({s.number, s.unix_time, rounded(s.prompt_rate), rounded(s.generated_rate),
                      or_null(s.hit_share), or_null(s.first_token_ms), s.running, s.waiting,
                      rounded(s.used_share), rounded(s.cached_share)});
}

}  // namespace

void History::add(HiveReading reading) {
  HiveSecond second;
  second.number = seconds_.empty() ? 1 : seconds_.back().number + 1;
  second.unix_time = reading.unix_time;
  second.is_known = !reading.epoch.empty();
  if (second.is_known) {
    add_rates(second, last_, reading);
    second.running = reading.statistics.totals["running"];
    second.waiting = reading.statistics.totals["waiting"];
    const TierReport& device = reading.tiers[std::size_t(Tier::device)];
    second.used_share = share(device.held + device.filling, device.blocks);
    second.cached_share = share(device.cached(), device.blocks);
  }
  seconds_.push_back(second);
  if (seconds_.size() > kSeconds) seconds_.pop_front();
  if (reading.epoch != last_.epoch) away_.clear();
  if (second.is_known && reading.epoch == last_.epoch) compare_engines(reading);
  last_ = std::move(reading);
}

void History::compare_engines(const HiveReading& reading) {
  const auto before = engines_of(last_.statistics), now = engines_of(reading.statistics);
  for (const auto& [engine, process] : before) {
    const auto found = now.find(engine);
    if (found != now.end() && found->second->pid == process->pid &&
        found->second->slot == process->slot)
      continue;
    ends_.push_back({engine, process->pid, reading.unix_time, process->counted["running"],
                     process->counted["waiting"], std::nullopt, std::nullopt});
    away_[engine] = {static_cast<std::size_t>(ends_dropped_ + ends_.size() - 1), last_.seconds};
  }
  for (auto away = away_.begin(); away != away_.end();) {
    if (!now.contains(away->first)) {
      ++away;
      continue;
    }
    if (away->second.end >= ends_dropped_)
      ends_[away->second.end - ends_dropped_].seconds_until_back =
          reading.seconds - away->second.since;
    away = away_.erase(away);
  }
  for (; ends_.size() > kEnds; ++ends_dropped_) ends_.pop_front();
  for (const auto& [engine, told] : reading.told_ends) believe(told);
}

/// The keeper knows to the millisecond what is seen here once a second; unless it was stopped, and
/// has noticed late.
void History::believe(const ToldEnd& told) {
  constexpr std::int64_t kLate = 2;
  for (EngineEnd& end : ends_) {
    if (end.pid != told.pid) continue;
    end.requests = told.requests;
    if (told.seconds_until_back && told.unix_ms / 1000 <= end.unix_time + kLate)
      end.seconds_until_back = told.seconds_until_back;
  }
}

std::string History::json(std::uint64_t after) const {
  Json rows = Json::array();
  for (const HiveSecond& second : seconds_)
    if (second.number > after) rows.push_back(row_of(second));
  Json ends = Json::array();
  for (const EngineEnd& end : ends_)
    ends.push_back({{"engine", end.engine},
                    {"unix_time", end.unix_time},
                    {"running", end.running},
                    {"waiting", end.waiting},
                    {"requests", end.requests ? Json(*end.requests) : Json()},
                    {"seconds_until_back", or_null(end.seconds_until_back)}});
  return Json{{"last", seconds_.empty() ? 0 : seconds_.back().number},
              {"columns",
               {"number", "unix_time", "prompt_tokens_per_second", "generated_tokens_per_second",
                "hit_share", "first_token_ms", "running", "waiting", "used_share", "cached_share"}},
              {"seconds", std::move(rows)},
              {"engine_ends", std::move(ends)}}
      .dump();
}

}  // namespace kvhive
