#include "tools/keeper/channels/channels.hpp"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "base/byte_size.hpp"
#include "base/check.hpp"
#include "base/round_up.hpp"
#include "ipc/channel/channel_layout.hpp"
#include "ipc/channel/doorbell.hpp"
#include "tools/keeper/channels/page_pins.hpp"

namespace kvhive {

Expected<std::uint64_t> Channels::reserve(std::size_t bytes, std::uint32_t wanted_engine,
                                          const ChannelOwner& owner, const MachineMemory& machine,
                                          ModelId model) {
  if (auto good = check_bytes(bytes); !good) return forward_error(good);
  const std::size_t whole_pages = round_up(bytes, 4096);
  if (auto granted = check_quota(whole_pages, owner, machine); !granted)
    return forward_error(granted);
  if (whole_pages > machine.available)
    return failure(Errc::out_of_memory,
                   "a channel needs " + format_bytes(whole_pages) + ", " + machine.bound + " has " +
                       format_bytes(machine.available) +
                       " available for channels; ask for a smaller one, or raise that limit");
  const std::uint64_t id = next_id_++;
  channels_[id].channel = {whole_pages, wanted_engine, model, owner, {}};
  changed_.insert(id);
  return id;
}

Expected<void> Channels::check_bytes(std::size_t bytes) {
  if (bytes >= kLeastChannelBytes && bytes <= kMostChannelBytes) return {};
  return failure(Errc::bad_argument,
                 "a channel of " + format_bytes(bytes) + " is out of bounds; ask for " +
                     format_bytes(kLeastChannelBytes) + " to " + format_bytes(kMostChannelBytes));
}

Expected<void> Channels::check_quota(std::size_t bytes, const ChannelOwner& owner,
                                     const MachineMemory& machine) const {
  std::size_t in_all = bytes, in_domain = bytes, of_user = bytes;
  const auto count = [&](const Channel& other) {
    in_all += other.bytes;
    if (other.owner.domain == owner.domain) in_domain += other.bytes;
    if (other.owner.user == owner.user) of_user += other.bytes;
  };
  for (const auto& [id, entry] : channels_) count(entry.channel);
  for (const auto& [id, channel] : closed_) count(channel);
  const bool is_large = bytes > ChannelQuota::kLarge;
  const auto limit = [&](std::size_t quota) {
    return is_large ? ChannelQuota::for_large(quota) : quota;
  };
  const std::string to_whom =
      is_large ? " to channels of more than " + format_bytes(ChannelQuota::kLarge) : "";
  if (in_all > limit(quota_.of_all))
    return failure(Errc::pool_exhausted, "the channels of all clients would have " +
                                             format_bytes(in_all) + ", the daemon grants " +
                                             format_bytes(limit(quota_.of_all)) + to_whom +
                                             "; close clients, or connect with a smaller channel "
                                             "(channel_bytes, --channel-bytes)");
  if (in_domain > limit(quota_.of_domain))
    return failure(Errc::pool_exhausted,
                   "your domain's channels would have " + format_bytes(in_domain) +
                       ", channel-bytes-per-domain grants " +
                       format_bytes(limit(quota_.of_domain)) + to_whom +
                       "; close one, ask for a smaller one, or have that raised");
  // Where there is little memory, a user gets its share of that.
  const std::size_t room = machine.available + in_all - bytes;
  const std::size_t most_of_user = std::min(quota_.of_user, std::max(room / 4, kUsualChannelBytes));
  if (owner.is_limited && of_user > most_of_user)
    return failure(Errc::pool_exhausted,
                   "the channels of user " + std::to_string(owner.user) + " would have " +
                       format_bytes(of_user) + ", the daemon grants a user " +
                       format_bytes(most_of_user) + "; close one, or ask for a smaller one");
  return {};
}

Expected<Channels::Created> Channels::complete(std::uint64_t id, ChannelMemory memory) {
  auto requests = reopen_read_only(memory.requests.get());
  if (!requests) return forward_error(requests);
  auto engine_bell = make_engine_bell();
  if (!engine_bell) return forward_error(engine_bell);
  auto client_bell = make_client_bell();
  if (!client_bell) return forward_error(client_bell);
  Entry& entry = channels_.at(id);
  std::swap(*requests, memory.requests);  // the one for writing is the client's
  entry.memory = std::move(memory);
  entry.engine_bell = std::move(*engine_bell);
  entry.client_bell = std::move(client_bell->engine_end);
  entry.clients_requests = std::move(*requests);
  entry.clients_bell = std::move(client_bell->client_end);
  changed_.insert(id);
  return offer(id);
}

Expected<Channels::Created> Channels::offer(std::uint64_t id) const {
  const Entry& entry = channels_.at(id);
  const ChannelMemory& memory = entry.memory;
  auto answers = reopen_read_only(memory.answers.get());
  if (!answers) return forward_error(answers);
  const auto copy = [](const UniqueFd& fd) {
    return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  };
  UniqueFd requests = copy(entry.clients_requests), bell = copy(entry.clients_bell);
  if (!requests || !bell) return os_failure("copy a channel's descriptors");
  return Created{entry.channel.bytes, std::move(requests), std::move(*answers),
                 entry.engine_bell.get(), std::move(bell)};
}

void Channels::taken(std::uint64_t id) {
  Entry& entry = channels_.at(id);
  changed_.insert(id);
  dropped_.push_back(std::move(entry.clients_requests));
  dropped_.push_back(std::move(entry.clients_bell));
}

Expected<const ChannelMemory*> Channels::sealed(std::uint64_t id) {
  Entry& entry = channels_.at(id);
  if (entry.is_sealed || !is_sealed_against_new_writers(entry.memory.requests.get()))
    return failure(
        Errc::bad_format,
        "the channel's requests must be sealed against new writers, once; use the client "
        "library");
  entry.is_sealed = true;
  changed_.insert(id);
  return &entry.memory;
}

std::size_t Channels::bytes_to_make() const {
  std::size_t bytes = 0;
  for (const auto& [id, entry] : channels_)
    if (!entry.memory.answers) bytes += entry.channel.bytes;
  return bytes;
}

std::size_t Channels::bytes_made() const {
  std::size_t bytes = 0;
  for (const auto& [id, entry] : channels_)
    if (entry.memory.answers) bytes += entry.channel.bytes;
  for (const auto& [id, channel] : closed_) bytes += channel.bytes;
  return bytes;
}

void Channels::set_share(DomainId domain, const DomainShare& share) {
  for (auto& [id, entry] : channels_)
    if (entry.channel.owner.domain == domain) entry.channel.owner.share = share;
}

std::set<DomainId> Channels::domains() const {
  std::set<DomainId> all;
  for (const auto& [id, entry] : channels_) all.insert(entry.channel.owner.domain);
  return all;
}

std::optional<Channels::Channel> Channels::find(std::uint64_t id) const {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return std::nullopt;
  return found->second.channel;
}

// -- engines --------------------------------------------------------------------------------------

void Channels::pinned(std::uint64_t id) {
  Entry& entry = channels_.at(id);
  entry.is_pinned = true;
  changed_.insert(id);
  for (auto& [key, engine] : engines_)
    if (is_for(entry.channel, engine)) engine.to_open.push_back(id);
}

void Channels::add_engine(EngineKey key, std::uint32_t number, ProcessSlot slot, ModelId model) {
  Engine& engine = engines_[key];
  engine.number = number;
  engine.slot = slot;
  engine.model = model;
  for (const auto& [id, entry] : channels_)
    if (entry.is_pinned && is_for(entry.channel, engine)) engine.to_open.push_back(id);
}

Channels::Left Channels::remove_engine(EngineKey key) {
  Left left;
  engines_.erase(key);
  for (auto& [id, entry] : channels_) {
    if (entry.refused_by.erase(key) != 0) changed_.insert(id);
    if (entry.channel.engines.erase(key) == 0) continue;
    changed_.insert(id);
    ++left.had;
    left.waiting += entry.channel.engines.empty() ? 1 : 0;
    say_who_serves(entry);
  }
  for (auto& [other, engine] : engines_) engine.knows_all_deaths = false;
  return left;
}

bool Channels::tell_engines(EngineLine& line) {
  bool all_were_told = true;
  for (auto& [key, engine] : engines_)
    if (!tell_known(key, engine, line) || !tell_of_deaths(key, engine, line) ||
        !tell_closed(key, engine, line) || !tell_opened(key, engine, line))
      all_were_told = false;
  return all_were_told;
}

bool Channels::tell_of_deaths(EngineKey key, Engine& engine, EngineLine& line) {
  if (!engine.knows_all_deaths) engine.knows_all_deaths = line.tell_of_death(key).has_value();
  return engine.knows_all_deaths;
}

bool Channels::tell_known(EngineKey key, Engine& engine, EngineLine& line) const {
  if (engine.knows_channels) return true;
  std::string numbers;
  for (const auto& [id, entry] : channels_)
    if (is_for(entry.channel, engine)) numbers += (numbers.empty() ? "" : ",") + std::to_string(id);
  return engine.knows_channels = line.tell_known(key, "[" + numbers + "]").has_value();
}

bool Channels::tell_closed(EngineKey key, Engine& engine, EngineLine& line) {
  const auto untold = std::find_if(engine.to_close.begin(), engine.to_close.end(),
                                   [&](std::uint64_t id) { return !line.close(key, {id}); });
  const bool all_were_told = untold == engine.to_close.end();
  engine.to_close.erase(engine.to_close.begin(), untold);
  return all_were_told;
}

bool Channels::tell_opened(EngineKey key, Engine& engine, EngineLine& line) {
  for (; !engine.to_open.empty() && engine.unanswered < kMostUnanswered;
       engine.to_open.pop_front()) {
    const std::uint64_t id = engine.to_open.front();
    const auto found = channels_.find(id);
    if (found == channels_.end()) continue;
    Entry& entry = found->second;
    const ChannelOwner& owner = entry.channel.owner;
    const ChannelOpen message{.channel = id,
                              .channel_bytes = entry.channel.bytes,
                              .domain = owner.domain,
                              .share = owner.share,
                              .user = owner.user,
                              .is_stranger = owner.is_limited,
                              .is_shared = entry.channel.wanted_engine == kAnyEngine};
    if (!line.open(key, message,
                   {entry.memory.requests.get(), entry.memory.answers.get(),
                    entry.engine_bell.get(), entry.client_bell.get()}))
      return false;
    changed_.insert(id);
    if (entry.channel.engines.insert(key).second) ++engine.channels;
    say_who_serves(entry);
    if (engine.unanswered++ == 0) engine.silent_since = std::chrono::steady_clock::now();
  }
  return true;
}

void Channels::say_who_serves(const Entry& entry) const {
  std::uint32_t slots = 0;
  for (const EngineKey key : entry.channel.engines) slots |= 1u << engines_.at(key).slot.value;
  const std::uint32_t first =
      slots == 0 ? kNoEngine : engines_.at(*entry.channel.engines.begin()).number;
  write_serving_engines(entry.memory.answers, first, slots);
}

bool Channels::answered(EngineKey engine) {
  const auto found = engines_.find(engine);
  if (found == engines_.end() || found->second.unanswered == 0) return false;
  found->second.silent_since = std::chrono::steady_clock::now();
  return found->second.unanswered-- == kMostUnanswered;
}

bool Channels::is_silent(EngineKey engine) const {
  const auto found = engines_.find(engine);
  return found != engines_.end() && found->second.unanswered != 0 &&
         std::chrono::steady_clock::now() - found->second.silent_since > kPatience;
}

bool Channels::has_unanswered() const {
  return std::any_of(engines_.begin(), engines_.end(),
                     [](const auto& entry) { return entry.second.unanswered != 0; });
}

bool Channels::take_back(std::uint64_t id, EngineKey key) {
  const auto found = channels_.find(id);
  if (found == channels_.end() || found->second.channel.engines.erase(key) == 0) return true;
  Entry& entry = found->second;
  --engines_.at(key).channels;
  changed_.insert(id);
  entry.refused_by.insert(key);
  say_who_serves(entry);
  return may_have(entry);
}

/// Whether there is an engine that has the channel, or will have it.
bool Channels::may_have(const Entry& entry) const {
  return std::any_of(engines_.begin(), engines_.end(), [&entry](const auto& engine) {
    return is_for(entry.channel, engine.second) && !entry.refused_by.contains(engine.first);
  });
}

std::optional<ChannelMemory> Channels::close(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return std::nullopt;
  const auto& channel = found->second.channel;
  for (auto& [key, engine] : engines_) {
    const bool has = channel.engines.contains(key);
    engine.channels -= has ? 1 : 0;
    if (has || (found->second.is_restored && is_for(channel, engine)))
      engine.to_close.push_back(id);
  }
  changed_.insert(id);
  Entry& entry = found->second;
  ChannelMemory memory = std::move(entry.memory);
  for (UniqueFd* fd :
       {&entry.engine_bell, &entry.client_bell, &entry.clients_requests, &entry.clients_bell})
    if (*fd) dropped_.push_back(std::move(*fd));
  closed_.emplace(id, channel);
  channels_.erase(found);
  return memory;
}

// -- for a successor ------------------------------------------------------------------------------

std::optional<ChannelRow> Channels::row_of(std::uint64_t id) const {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return std::nullopt;
  const auto& [key, entry] = *found;
  ChannelRow row;
  row.id = id;
  row.bytes = entry.channel.bytes;
  row.wanted_engine = entry.channel.wanted_engine;
  row.model = entry.channel.model.value;
  row.domain = entry.channel.owner.domain.value;
  row.user = entry.channel.owner.user;
  row.is_limited = entry.channel.owner.is_limited;
  row.is_sealed = entry.is_sealed;
  row.is_pinned = entry.is_pinned;
  const auto slots_of = [&](const std::set<EngineKey>& engines) {
    std::uint32_t slots = 0;
    for (const EngineKey engine : engines) slots |= 1u << engines_.at(engine).slot.value;
    return slots;
  };
  row.engines = slots_of(entry.channel.engines);
  row.refused_by = slots_of(entry.refused_by);
  row.requests = entry.memory.requests.get();
  row.answers = entry.memory.answers.get();
  row.engine_bell = entry.engine_bell.get();
  row.client_bell = entry.client_bell.get();
  row.clients_requests = entry.clients_requests.get();
  row.clients_bell = entry.clients_bell.get();
  row.pins.fill(-1);
  KV_CHECK(entry.memory.pins.size() <= row.pins.size(), entry.memory.pins.size());
  std::transform(entry.memory.pins.begin(), entry.memory.pins.end(), row.pins.begin(),
                 [](const UniqueFd& pin) { return pin.get(); });
  return row;
}

void Channels::restore(const ChannelRow& row, const DomainShare& share) {
  Entry& entry = channels_[row.id];
  entry.channel = {
      row.bytes,
      row.wanted_engine,
      ModelId{row.model},
      {DomainId{static_cast<std::uint16_t>(row.domain)}, row.user, row.is_limited != 0, share},
      {}};
  entry.memory.requests = UniqueFd(row.requests);
  entry.memory.answers = UniqueFd(row.answers);
  for (const int pin : row.pins)
    if (pin >= 0) entry.memory.pins.emplace_back(pin);
  entry.engine_bell = UniqueFd(row.engine_bell);
  entry.client_bell = UniqueFd(row.client_bell);
  entry.clients_requests = UniqueFd(row.clients_requests);
  entry.clients_bell = UniqueFd(row.clients_bell);
  entry.is_sealed = row.is_sealed != 0;
  entry.is_pinned = row.is_pinned != 0;
  entry.is_restored = true;
  for (auto& [key, engine] : engines_) {
    const auto is_in = [slot = engine.slot.value](std::uint32_t slots) {
      return (slots >> slot & 1) != 0;
    };
    if (is_in(row.refused_by)) {
      entry.refused_by.insert(key);
    } else if (is_in(row.engines)) {
      entry.channel.engines.insert(key);
      ++engine.channels;
    } else if (entry.is_pinned && is_for(entry.channel, engine)) {
      engine.to_open.push_back(row.id);
    }
  }
}

void Channels::tell_all_again() {
  for (auto& [key, engine] : engines_) engine.knows_all_deaths = engine.knows_channels = false;
}

/// The pipes that were to hold the pages may be full in part, so there are new ones. The first
/// seven made hold pages of the answers.
Expected<const ChannelMemory*> Channels::pinned_in_part(std::uint64_t id) {
  constexpr std::size_t kFirst = 7;
  Entry& entry = channels_.at(id);
  auto pipes = make_pin_pipes(1, entry.channel.bytes);
  if (!pipes) return forward_error(pipes);
  auto& pins = entry.memory.pins;
  const auto first = pins.end() - static_cast<std::ptrdiff_t>(std::min(pins.size(), kFirst));
  std::move(pins.begin(), first, std::back_inserter(dropped_));
  pins.erase(pins.begin(), first);
  std::move(pins.begin(), pins.end(), std::back_inserter(*pipes));
  pins = std::move(*pipes);
  changed_.insert(id);
  return &entry.memory;
}

std::vector<std::pair<std::uint64_t, Channels::Stage>> Channels::stages() const {
  std::vector<std::pair<std::uint64_t, Stage>> stages;
  for (const auto& [id, entry] : channels_)
    stages.emplace_back(id, entry.is_pinned        ? Stage::pinned
                            : entry.is_sealed      ? Stage::sealed
                            : entry.memory.answers ? Stage::made
                                                   : Stage::reserved);
  return stages;
}

}  // namespace kvhive
