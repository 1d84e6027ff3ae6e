#pragma once
// The requests that wait in one engine, in the order in which to admit them. The scheduler's; plain
// C++.
//
// Within a domain the order is vLLM's: first come, first served, or by priority. Between domains it
// is that of the Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models",
// OSDI 2024), with weights: each domain's counter grows with the tokens that are computed for it,
// divided by its weight, and the domain with the least counter is next. So the tokens computed for
// two domains that both always want more differ, weighted, by a bounded amount, however many
// requests either has and however long they are. A domain for which nothing waited gets no credit
// for that: its counter is lifted to the least of those for which something does. What runs
// meanwhile makes no difference: one long answer would otherwise save up while others are served.
//
// One domain alone is served exactly as vLLM would.

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.hpp"
#include "config/choices.hpp"
#include "config/domains/domain_share.hpp"

namespace kvhive {

class WaitingQueue {
 public:
  explicit WaitingQueue(SchedulingPolicy policy) : policy_(policy) {}

  /// Describes a request to the queue: the same when it is queued and when it leaves.
  struct Entry {
    SeqId seq;
    DomainId domain;
    std::int32_t priority = 0;
    std::uint64_t arrival = 0;
    std::size_t tokens = 0;
  };
  /// Where a request waits: the least goes first. No two requests of a queue have the same.
  struct Place {
    std::int64_t rank = 0;   ///< 0, or with the priority policy the request's priority
    std::int64_t order = 0;  ///< among equal ranks
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  /// The place of a request with the priority policy, waiting or not.
  static Place place_by_priority(const Entry& entry) {
    return {entry.priority, static_cast<std::int64_t>(entry.arrival)};
  }

  void set_share(DomainId domain, const DomainShare& share) { domains_[domain].share = share; }

  Place add(const Entry& entry);
  /// A request that ran and was preempted. With first come, first served it goes before all others,
  /// of all domains: it has been paid for.
  Place add_preempted(const Entry& entry);
  /// \param entry  as it was added
  void remove(const Entry& entry, Place place);

  /// The requests to admit next, in this order. Domains do not get more to run than their shares
  /// allow.
  std::vector<SeqId> first(std::size_t most) const;

  /// The domains that had as many blocks as they may have in the last step, all held: of each of
  /// them one request is tried in each step, and the others of its requests keep nobody waiting.
  void set_at_maximum(const std::vector<DomainId>& domains);

  /// A request of the domain runs from now on.
  void begins(DomainId domain) { ++domains_[domain].running; }
  /// It does not any more.
  void ends(DomainId domain) { --domains_.at(domain).running; }
  /// The domain's requests have been given this many tokens of computing.
  void serve(DomainId domain, std::size_t tokens);
  /// How much the domain has been given, beside others: with equal shares, in tokens.
  double served(DomainId domain) const;

  bool is_empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  std::size_t tokens() const { return tokens_; }
  /// Tokens of the domain's requests that wait.
  std::size_t tokens_of(DomainId domain) const;
  /// The domain's weight as a part of the weights of all that have something to do, it included.
  double part_of(DomainId domain) const;

 private:
  struct Waiting {
    SeqId seq;
    DomainId domain;
    std::size_t tokens;
  };
  using Line = std::map<Place, Waiting>;
  struct Domain {
    DomainShare share;
    Line line;
    std::size_t tokens = 0;
    std::uint32_t running = 0;
    std::uint32_t preempted = 0;  ///< of its requests, in the line of preempted ones
    double served = 0;            ///< tokens / weight
    bool is_at_maximum = false;   ///< of its blocks

    bool waits() const { return tokens != 0; }
    bool may_run_more(std::uint32_t more) const {
      if (is_at_maximum && more != 0) return false;
      return share.max_num_seqs == 0 || running + preempted + more < share.max_num_seqs;
    }
  };
  struct Candidate;
  void come(Domain& domain, const Entry& entry);
  double least_served() const;
  Line& line_of(const Entry& entry, Place place);

  SchedulingPolicy policy_;
  std::map<DomainId, Domain> domains_;
  /// With first come, first served: preempted requests of all domains. Their places are negative.
  Line preempted_;
  std::int64_t last_place_ = 0;   ///< those of other requests begin at 1, ...
  std::int64_t first_place_ = 0;  ///< ... and those of preempted requests go down from -1
  std::size_t size_ = 0;
  std::size_t tokens_ = 0;
  double most_served_ = 0;  ///< the greatest counter of a domain
};

}  // namespace kvhive
