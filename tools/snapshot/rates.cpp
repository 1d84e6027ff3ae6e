#include "tools/snapshot/rates.hpp"

#include <algorithm>

namespace kvhive {
namespace {

std::optional<Rate> rate_between(const CounterValues& before, const CounterValues& now,
                                 double seconds) {
  for (const CounterName name : {CounterName("prompt_tokens"), CounterName("generated_tokens"),
                                 CounterName("cached_tokens")})
    if (now[name] < before[name]) return std::nullopt;
  const auto grown = [&](CounterName name) {
    return static_cast<double>(now[name] - before[name]);
  };
  const double prompt = grown("prompt_tokens");
  Rate rate{prompt / seconds, grown("generated_tokens") / seconds, std::nullopt};
  if (prompt > 0) rate.hit_share = grown("cached_tokens") / prompt;
  return rate;
}

}  // namespace

Rates rates_between(const Snapshot& before, const Snapshot& now) {
  Rates rates;
  const double seconds = now.seconds - before.seconds;
  if (before.pool.epoch != now.pool.epoch || seconds <= 0) return rates;
  rates.hive = rate_between(before.pool.totals, now.pool.totals, seconds);
  for (const EngineRow& engine : now.engines) {
    const auto was =
        std::find_if(before.engines.begin(), before.engines.end(), [&](const EngineRow& other) {
          return other.number == engine.number && other.pid == engine.pid &&
                 other.slot == engine.slot;
        });
    if (was == before.engines.end() || !engine.slot) continue;
    if (const auto rate = rate_between(was->counted, engine.counted, seconds))
      rates.engines[engine.number] = *rate;
  }
  return rates;
}

}  // namespace kvhive
