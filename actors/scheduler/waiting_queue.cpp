#include "actors/scheduler/waiting_queue.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/check.hpp"

namespace kvhive {

// -- requests come and go -------------------------------------------------------------------------

WaitingQueue::Place WaitingQueue::add(const Entry& entry) {
  const bool is_fcfs = policy_ == SchedulingPolicy::fcfs;
  const Place place = is_fcfs ? Place{0, ++last_place_} : place_by_priority(entry);
  come(domains_[entry.domain], entry);
  KV_CHECK(line_of(entry, place).emplace(place, Waiting{entry.seq, entry.tokens}).second,
           entry.seq.value);
  return place;
}

WaitingQueue::Place WaitingQueue::add_preempted(const Entry& entry) {
  if (policy_ == SchedulingPolicy::priority) return add(entry);
  const Place place{0, --first_place_};
  come(domains_[entry.domain], entry);
  ++domains_[entry.domain].preempted;
  preempted_.emplace(place, Waiting{entry.seq, entry.tokens});
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
  leave_if_idle(domain);
}

WaitingQueue::Line& WaitingQueue::line_of(const Entry& entry, Place place) {
  const bool was_preempted = policy_ == SchedulingPolicy::fcfs && place.order < 0;
  return was_preempted ? preempted_ : domains_.at(entry.domain).line;
}

void WaitingQueue::come(Domain& domain, const Entry& entry) {
  if (domain.is_idle()) domain.served = std::max(domain.served, least_served());
  domain.tokens += entry.tokens;
  tokens_ += entry.tokens;
  ++size_;
}

/// Of the domains that have something to do. If none has, the counter where the last one left, or
/// whoever comes first would have credit for all that was computed for it.
double WaitingQueue::least_served() const {
  std::optional<double> least;
  for (const auto& [id, domain] : domains_)
    if (!domain.is_idle()) least = std::min(least.value_or(domain.served), domain.served);
  return least.value_or(left_at_);
}

void WaitingQueue::leave_if_idle(const Domain& domain) {
  if (domain.is_idle()) left_at_ = std::max(left_at_, domain.served);
}

// -- what runs ------------------------------------------------------------------------------------

void WaitingQueue::ends(DomainId id) {
  Domain& domain = domains_.at(id);
  --domain.running;
  leave_if_idle(domain);
}

void WaitingQueue::serve(DomainId id, std::size_t tokens) {
  Domain& domain = domains_[id];
  domain.served += static_cast<double>(tokens) / static_cast<double>(domain.share.weight);
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
    if (other != id && !domain.is_idle()) all += double{domain.share.weight};
  return own / all;
}

// -- the order ------------------------------------------------------------------------------------

/// A domain while requests are chosen, as if those chosen so far had been served already.
struct WaitingQueue::Candidate {
  DomainId id;
  const Domain* domain;
  Line::const_iterator next;
  std::uint32_t running;
  double served;

  bool has_next() const {
    const std::uint32_t most = domain->share.max_num_seqs;
    return next != domain->line.end() && (most == 0 || running < most);
  }
  SeqId take() {
    served += static_cast<double>(next->second.tokens) / static_cast<double>(domain->share.weight);
    ++running;
    return next++->second.seq;
  }
  /// For a heap with the domain that is next on top.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(b.served, b.id) < std::tie(a.served, a.id);
  }
};

std::vector<SeqId> WaitingQueue::first(std::size_t most) const {
  std::vector<SeqId> order;
  for (const auto& [place, waiting] : preempted_)
    if (order.size() < most) order.push_back(waiting.seq);
  std::vector<Candidate> heap;
  for (const auto& [id, domain] : domains_) {
    const Candidate candidate{id, &domain, domain.line.begin(), domain.running + domain.preempted,
                              domain.served};
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
