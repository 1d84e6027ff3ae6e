#include "tools/keeper/channels.hpp"

#include <fcntl.h>

#include <algorithm>
#include <string>

#include "base/byte_size.hpp"
#include "base/round_up.hpp"
#include "ipc/channel_memory.hpp"
#include "ipc/doorbell.hpp"

namespace kvhive {

Expected<Channels::Created> Channels::create(std::size_t bytes, std::uint32_t wanted_engine,
                                             DomainId domain, const MachineMemory& machine) {
  if (bytes < kLeastChannelBytes || bytes > kMostChannelBytes)
    return failure(Errc::bad_argument,
                   "a channel of " + format_bytes(bytes) + " is out of bounds; ask for " +
                       format_bytes(kLeastChannelBytes) + " to " + format_bytes(kMostChannelBytes));
  const std::size_t whole_pages = round_up(bytes, 4096);
  std::size_t in_all = whole_pages, in_domain = whole_pages;
  for (const auto& [id, other] : channels_) {
    in_all += other.channel.bytes;
    if (other.channel.domain == domain) in_domain += other.channel.bytes;
  }
  if (in_all > quota_.of_all)
    return failure(Errc::pool_exhausted, "the channels of all clients would have " +
                                             format_bytes(in_all) + ", the daemon grants " +
                                             format_bytes(quota_.of_all) +
                                             "; close clients, or connect with a smaller channel "
                                             "(channel_bytes, --channel-bytes)");
  if (in_domain > quota_.of_domain)
    return failure(Errc::pool_exhausted,
                   "your domain's channels would have " + format_bytes(in_domain) +
                       ", channel-bytes-per-domain grants " + format_bytes(quota_.of_domain) +
                       "; close one, ask for a smaller one, or have that raised");
  if (whole_pages > machine.available)
    return failure(Errc::out_of_memory,
                   "a channel needs " + format_bytes(whole_pages) + ", " + machine.bound + " has " +
                       format_bytes(machine.available) +
                       " available; ask for a smaller one, or raise that limit");
  auto memory = make_channel_memory(whole_pages);
  if (!memory) return forward_error(memory);
  auto doorbell = make_doorbell();
  if (!doorbell) return forward_error(doorbell);
  auto& [engine_end, client_end] = *doorbell;
  const std::uint64_t id = next_id_++;
  Created created{id, whole_pages, memory->get(), std::move(client_end)};
  channels_.emplace(id, Entry{{whole_pages, wanted_engine, domain, std::nullopt},
                              std::move(*memory),
                              std::move(engine_end)});
  return created;
}

std::optional<Channels::Channel> Channels::find(std::uint64_t id) const {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return std::nullopt;
  return found->second.channel;
}

std::vector<std::uint64_t> Channels::remove_engine(EngineKey engine) {
  engines_.erase(engine);
  std::vector<std::uint64_t> waiting;
  for (auto& [id, entry] : channels_) {
    if (entry.channel.engine != engine) continue;
    take_back(id);
    waiting.push_back(id);
  }
  return waiting;
}

bool Channels::place_waiting(EngineLine& line) {
  bool all_were_told = true;
  for (auto& [id, entry] : channels_) {
    if (entry.channel.engine) continue;
    if (const auto best = best_engine_for(entry.channel))
      all_were_told = give(id, entry, *best, line) && all_were_told;
  }
  return all_were_told;
}

std::optional<Channels::EngineKey> Channels::best_engine_for(const Channel& channel) const {
  std::optional<EngineKey> best;
  for (const auto& [engine, number] : engines_) {
    if (channel.wanted_engine != kAnyEngine && channel.wanted_engine != number) continue;
    if (!best || load_of(engine) < load_of(*best)) best = engine;
  }
  return best;
}

bool Channels::give(std::uint64_t id, Entry& entry, EngineKey engine, EngineLine& line) const {
  const int doorbell = entry.doorbell.get();
  const ChannelOpen message{id, entry.channel.bytes, entry.channel.domain};
  if (!line.open(engine, message, {entry.memory.get(), doorbell, doorbell})) return false;
  entry.channel.engine = engine;
  write_serving_engine(entry.memory.get(), engines_.at(engine));
  return true;
}

void Channels::take_back(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return;
  found->second.channel.engine.reset();
  write_serving_engine(found->second.memory.get(), kNoEngine);
}

std::optional<Channels::EngineKey> Channels::close(std::uint64_t id, EngineLine& line) {
  const auto channel = find(id);
  if (!channel) return std::nullopt;
  forget(id);
  if (!channel->engine || line.close(*channel->engine, ChannelClose{id})) return std::nullopt;
  return channel->engine;
}

void Channels::forget(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return;
  const auto& [channel, memory, doorbell] = found->second;
  // The memory is freed now, even if the client or an engine still has a descriptor of it: the
  // quota counts it as free from here on. If fallocate() fails, the memory is freed when the last
  // descriptor is closed.
  (void)fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(channel.bytes));
  channels_.erase(found);
}

std::size_t Channels::load_of(EngineKey engine) const {
  return static_cast<std::size_t>(
      std::count_if(channels_.begin(), channels_.end(),
                    [engine](const auto& entry) { return entry.second.channel.engine == engine; }));
}

}  // namespace kvhive
