#include "tools/events/pool_names.hpp"

#include "hashing/cache_salt.hpp"

namespace kvhive {

PoolNames::PoolNames(std::vector<std::string> domains, const std::vector<std::string>& adapters)
    : domains_(std::move(domains)) {
  for (const std::string& adapter : adapters)
    adapters_.emplace_back(start_key({}, adapter), adapter);
}

std::string PoolNames::domain(DomainId domain) const {
  return knows(domain) ? domains_[domain.value] : std::to_string(domain.value);
}

std::optional<std::string> PoolNames::adapter(const ExtraKey& start) const {
  for (const auto& [key, name] : adapters_)
    if (key == start) return name;
  return std::nullopt;
}

}  // namespace kvhive
