#include "tools/serve/hive/hives.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvhive {

Hive::Limits Hives::part_of(const Hive::Limits& all, std::size_t parts) {
  Hive::Limits part = all;
  part.channels = std::max<std::size_t>(all.channels / parts, 2);
  part.waiting = std::max<std::size_t>(all.waiting / parts, 1);
  part.waiting_bytes = std::max(all.waiting_bytes / parts, all.largest);
  return part;
}

Hives::Hives(boost::asio::io_context& loop, const Hive::Daemon& daemon, const Hive::Limits& limits,
             const std::vector<std::string>& domains, const Hive::Identify& identify,
             const Hive::OnOpened& on_opened) {
  for (const std::string& domain : domains)
    hives_.emplace(domain, std::make_unique<Hive>(loop, daemon, part_of(limits, domains.size()),
                                                  domain, identify, on_opened));
}

std::size_t Hives::most_channels(const Hive::Limits& limits, std::size_t domains) {
  return domains * part_of(limits, domains).channels;
}

void Hives::look_for_daemon(Hive::Answer answer) { look_from(hives_.begin(), std::move(answer)); }

/// A daemon that refuses one domain may serve the next.
void Hives::look_from(ByDomain::const_iterator next, Hive::Answer answer) {
  next->second->look_for_daemon(
      [this, next, answer = std::move(answer)](const Result<void>& serves) {
        if (serves.error().code != Hive::kNotAllowed || std::next(next) == hives_.end())
          return answer(serves);
        look_from(std::next(next), answer);
      });
}

void Hives::count_adapters(std::map<std::string, Hive::OfAdapter>& counts) const {
  for (const auto& [domain, hive] : hives_) hive->count_adapters(counts);
}

std::size_t Hives::running() const {
  std::size_t sum = 0;
  for (const auto& [domain, hive] : hives_) sum += hive->running();
  return sum;
}

std::size_t Hives::waiting() const {
  std::size_t sum = 0;
  for (const auto& [domain, hive] : hives_) sum += hive->waiting();
  return sum;
}

bool Hives::is_opening() const {
  return std::ranges::any_of(hives_, [](const auto& hive) { return hive.second->is_opening(); });
}

std::size_t Hives::channels() const {
  std::size_t sum = 0;
  for (const auto& [domain, hive] : hives_) sum += hive->channels();
  return sum;
}

}  // namespace kvhive
