#include "tools/placement/engine_places.hpp"

#include <algorithm>

namespace kvhive {
namespace {

std::uint32_t at_least_one(std::uint32_t threads) { return std::max(1u, threads); }

/// Threads of an engine that the quota has time for.
std::uint32_t most_threads(const std::optional<ProcessorQuota>& quota, std::uint32_t engines) {
  if (!quota) return ~0u;
  return at_least_one(static_cast<std::uint32_t>(std::min(quota->processors, 1e6)) / engines);
}

Expected<void> check_lists(const CpuBind& bind, const ProcessorMap& map) {
  const ProcessorList granted = map.processors();
  for (std::size_t engine = 0; engine < bind.lists.size(); ++engine)
    for (const std::uint32_t number : bind.lists[engine])
      if (!std::ranges::binary_search(granted, number))
        return failure(Errc::bad_argument,
                       "cpu-bind: processor " + std::to_string(number) + " of engine " +
                           std::to_string(engine) +
                           "'s list is none that kvhived may run on; those are " +
                           to_string(granted));
  return {};
}

std::string counted(std::uint32_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Several engines on each core, as many on one as on another: the kernel, which moves them, leaves
/// one or another without a processor for a while, and its requests wait.
std::vector<ProcessorList> in_turns(std::uint32_t engines, const ProcessorMap& map) {
  const auto cores = map.split(map.cores());
  std::vector<ProcessorList> lists;
  for (std::uint32_t i = 0; i < engines; ++i) lists.push_back(cores[i % cores.size()]);
  return lists;
}

/// A part of the cores for each engine, with one for each thread, or a core for several engines
/// with a thread each; else the reason why there is none.
Expected<std::vector<ProcessorList>> own_parts(std::uint32_t engines, std::uint32_t threads,
                                               const ProcessorMap& map) {
  const std::uint32_t cores = map.cores();
  if (engines == 1) return failure(Errc::unsupported, "there is one");
  if (engines > cores && engines % cores == 0 && threads <= 1) return in_turns(engines, map);
  if (engines > cores)
    return failure(Errc::unsupported,
                   counted(engines, "engine") + " share " + counted(cores, "core"));
  auto parts = map.split(engines);
  for (const ProcessorList& part : parts)
    if (const std::uint32_t own = map.cores_of(part); own < threads)
      return failure(Errc::unsupported, "with " + std::to_string(threads) +
                                            " threads each, one would have " +
                                            counted(own, "core"));
  return parts;
}

}  // namespace

Expected<EnginePlaces> place_engines(const CpuBind& bind, std::uint32_t engines,
                                     std::uint32_t threads, const ProcessorMap& map,
                                     const std::optional<ProcessorQuota>& quota) {
  if (auto valid = check_lists(bind, map); !valid) return forward_error(valid);
  EnginePlaces places;
  std::vector<ProcessorList> lists = bind.lists;
  if (bind.way == CpuBind::Way::automatic) {
    auto parts = own_parts(engines, threads, map);
    if (parts)
      lists = std::move(*parts);
    else
      places.reason = parts.error().text;
  }
  lists.resize(engines);  // check_options() has compared the numbers
  const std::uint32_t most = most_threads(quota, engines);
  // As many for all, so that none is slower than the others only because of where it runs.
  const std::uint32_t even = at_least_one(map.cores() / engines);
  const bool are_listed = bind.way == CpuBind::Way::listed;
  for (ProcessorList& list : lists) {
    const std::uint32_t cores = are_listed ? at_least_one(map.cores_of(list)) : even;
    places.engines.push_back({threads != 0 ? threads : std::min(cores, most), std::move(list)});
  }
  return places;
}

NodeList nodes_for(const std::vector<EnginePlace>& engines, const ProcessorMap& map) {
  const ProcessorList all = map.processors();
  if (map.nodes_of(all).size() < 2) return {};
  ProcessorList used;
  for (const EnginePlace& engine : engines) {
    const ProcessorList& own = engine.processors.empty() ? all : engine.processors;
    used.insert(used.end(), own.begin(), own.end());
  }
  return map.nodes_of(used);
}

}  // namespace kvhive
