#include "actors/prefix/single_flight.hpp"

#include <algorithm>
#include <utility>

#include "base/round_up.hpp"

namespace kvhive {

bool SingleFlight::still_waits(const Ticket& ticket) const {
  return ticket.waits_for != 0 && claims_.is_claimed(ticket.name, ticket.waits_for) &&
         clock_() < ticket.waits_until;
}

bool SingleFlight::waits(Ticket& ticket, const Names& names, std::size_t hit, std::size_t most,
                         double patience) {
  if (hit >= most) return false;
  ticket.name = next(names, hit, most);
  const std::uint64_t now = clock_();
  Claims::Answer answer = claims_.claim(ticket.name);
  const auto begin_to_wait = [&] {
    ticket.waits_until = now + static_cast<std::uint64_t>(patience * 1e9);
  };
  if (answer.taken_by != 0) {
    // Another process took the claim over, or goes on where the one before has ended.
    if (claimed_by(answer.taken_by) != claimed_by(ticket.waits_for)) begin_to_wait();
    if (now >= ticket.waits_until) {
      answer = claims_.claim(ticket.name, answer.taken_by);
      if (answer.taken_by != 0) begin_to_wait();  // who came first has new patience, too
    }
  }
  ticket.claim = answer.claim;
  ticket.waits_for = answer.taken_by;
  return answer.taken_by != 0;
}

std::optional<Claim> SingleFlight::advance(Ticket& ticket, const Names& names, std::size_t computed,
                                           std::size_t most) {
  Ticket ahead{.has_waited = ticket.has_waited};
  if (computed < most) {
    ahead.name = next(names, computed, most);
    if (ticket.claim && ahead.name == ticket.name) return std::nullopt;
    ahead.claim = claims_.claim(ahead.name).claim;
  }
  return std::exchange(ticket, ahead).claim;
}

void SingleFlight::withdraw(const std::optional<Claim>& claim) {
  if (claim) claims_.withdraw(*claim);
}

void SingleFlight::withdraw(Ticket& ticket) {
  withdraw(std::exchange(ticket, Ticket{.has_waited = ticket.has_waited}).claim);
}

Hash128 SingleFlight::next(const Names& names, std::size_t computed, std::size_t most) const {
  Hash128 name =
      names.blocks[std::min(round_up(computed + stretch_.least, stretch_.unit), most) - 1];
  for (std::uint64_t* half : {&name.low, &name.high})
    *half ^= names.resets.value * 0x9e3779b97f4a7c15ull;
  return name;
}

}  // namespace kvhive
