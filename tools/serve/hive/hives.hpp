#pragma once
// The daemon's engines for callers of several domains. A channel belongs to one domain, so each
// domain has a hive of its own: one that is full, or that the daemon refuses, holds up no other.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/serve/hive/hive.hpp"

namespace kvhive {

class Hives {
 public:
  /// \param limits   of all together; each domain gets an even part of them, and two channels at
  ///                 least
  /// \param domains  one at least; empty = the one that the operator's rules give this user
  Hives(boost::asio::io_context& loop, const Hive::Daemon& daemon, const Hive::Limits& limits,
        const std::vector<std::string>& domains, const Hive::Identify& identify,
        const Hive::OnOpened& on_opened);

  /// \param domain  one of those that were given
  Hive& of(const std::string& domain) { return *hives_.at(domain); }
  /// Whether a daemon serves one of the domains, or why not.
  void look_for_daemon(Hive::Answer answer);

  /// Adds the requests of all domains to `counts`, by the adapter's name.
  void count_adapters(std::map<std::string, Hive::OfAdapter>& counts) const;
  std::size_t running() const;
  std::size_t waiting() const;
  std::size_t channels() const;
  bool is_opening() const;
  /// An even part of them: two channels at least, and room for the largest request.
  static Hive::Limits part_of(const Hive::Limits& all, std::size_t parts);
  /// The most channels of `domains` domains together.
  static std::size_t most_channels(const Hive::Limits& limits, std::size_t domains);

 private:
  using ByDomain = std::map<std::string, std::unique_ptr<Hive>>;
  void look_from(ByDomain::const_iterator next, Hive::Answer answer);
  ByDomain hives_;
};

}  // namespace kvhive
