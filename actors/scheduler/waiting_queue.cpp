#include "actors/scheduler/waiting_queue.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.hpp"

namespace kvhive {

// -- requests come and go -------------------------------------------------------------------------

WaitingQueue::Place WaitingQueue::add(const Entry& entry) {
  const bool is_fcfs = policy_ == SchedulingPolicy::fcfs;
  const Place place = is_fcfs ? Place{0, ++last_place_} : place_by_priority(entry);
  come(domains_[entry.domain], entry);
  KV_CHECK(
      line_of(entry, place).emplace(place, Waiting{entry.seq, entry.domain, entry.tokens}).second,
      entry.seq.value);
  return place;
}

WaitingQueue::Place WaitingQueue::add_preempted(const Entry& entry) {
  if (policy_ == SchedulingPolicy::priority) return add(entry);
  const Place place{0, --first_place_};
  come(domains_[entry.domain], entry);
  ++domains_[entry.domain].preempted;
  preempted_.emplace(place, Waiting{entry.seq, entry.domain, entry.tokens});
  return place;
}

void WaitingQueue::remove(const Entry& entry, Place place) {
  Domain& domain = domains_.at(entry.domain);
  Line& line = line_of(entry, place);
  KV_CHECK(line.erase(place) == 1, entry.seq.value);
  if (&line == &preempted_) --domain.preempted;
  domain.tokens -= entry.tokens;
  tokens_ -= entry.tokens;
  --size_;
}

WaitingQueue::Line& WaitingQueue::line_of(const Entry& entry, Place place) {
  const bool was_preempted = policy_ == SchedulingPolicy::fcfs && place.order < 0;
  return was_preempted ? preempted_ : domains_.at(entry.domain).line;
}

void WaitingQueue::come(Domain& domain, const Entry& entry) {
  if (!domain.waits()) domain.served = std::max(domain.served, least_served());
  domain.tokens += entry.tokens;
  tokens_ += entry.tokens;
  ++size_;
}

/// Of the domains for which something waits, other than for their own limits: those stay behind. If
/// there is none, nobody has credit: the greatest counter.
double WaitingQueue::least_served() const {
  double least = most_served_;
  for (const auto& [id, domain] : domains_)
    if (domain.waits() && domain.may_run_more(0) && !domain.is_at_maximum)
      least = std::min(least, domain.served);
  return least;
}

// -- what runs ------------------------------------------------------------------------------------

void WaitingQueue::set_at_maximum(const std::vector<DomainId>& domains) {
  for (auto& [id, domain] : domains_)
    domain.is_at_maximum = std::find(domains.begin(), domains.end(), id) != domains.end();
}

void WaitingQueue::serve(DomainId id, std::size_t tokens) {
  Domain& domain = domains_[id];
  domain.served += static_cast<double>(tokens) / static_cast<double>(domain.share.weight);
  most_served_ = std::max(most_served_, domain.served);
}

double WaitingQueue::served(DomainId id) const {
  const auto found = domains_.find(id);
  return found == domains_.end() ? 0 : found->second.served;
}

std::size_t WaitingQueue::tokens_of(DomainId id) const {
  const auto found = domains_.find(id);
  return found == domains_.end() ? 0 : found->second.tokens;
}

double WaitingQueue::part_of(DomainId id) const {
  const auto found = domains_.find(id);
  const double own = found == domains_.end() ? 1 : double{found->second.share.weight};
  double all = own;
  for (const auto& [other, domain] : domains_)
    if (other != id && (domain.waits() || domain.running != 0)) all += double{domain.share.weight};
  return own / all;
}

// -- the order ------------------------------------------------------------------------------------

/// A domain while requests are chosen, as if those chosen so far had been served already.
struct WaitingQueue::Candidate {
  DomainId id;
  const Domain* domain;
  Line::const_iterator next;
  double served;
  std::uint32_t taken = 0;

  bool has_next() const { return next != domain->line.end() && domain->may_run_more(taken); }
  SeqId take() {
    served += static_cast<double>(next->second.tokens) / static_cast<double>(domain->share.weight);
    ++taken;
    return next++->second.seq;
  }
  /// For a heap with the domain that is next on top.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(b.served, b.id) < std::tie(a.served, a.id);
  }
};

std::vector<SeqId> WaitingQueue::first(std::size_t most) const {
  std::vector<SeqId> order;
  std::set<DomainId> tried;  // of those at their maximum
  for (const auto& [place, waiting] : preempted_) {
    if (order.size() == most) break;
    if (domains_.at(waiting.domain).is_at_maximum && !tried.insert(waiting.domain).second) continue;
    order.push_back(waiting.seq);
  }
  std::vector<Candidate> heap;
  for (const auto& [id, domain] : domains_) {
    if (tried.contains(id)) continue;
    const Candidate candidate{id, &domain, domain.line.begin(), domain.served};
    if (candidate.has_next()) heap.push_back(candidate);
  }
  std::make_heap(heap.begin(), heap.end());
  while (order.size() < most && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    order.push_back(heap.back().take());
    if (heap.back().has_next())
      std::push_heap(heap.begin(), heap.end());
    else
      heap.pop_back();
  }
  return order;
}

}  // namespace kvhive
