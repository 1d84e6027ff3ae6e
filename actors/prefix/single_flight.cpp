#include "actors/prefix/single_flight.hpp"

#include <algorithm>
#include <utility>

#include "base/round_up.hpp"

namespace kvhive {

bool SingleFlight::waits(Ticket& ticket, std::span<const Hash128> names, std::size_t hit,
                         std::size_t most, double alone) {
  if (hit >= most) return false;
  ticket.name = next(names, hit, most);
  const std::uint64_t now = clock_();
  Claims::Answer answer = claims_.claim(ticket.name);
  const bool gets_on =
      ticket.waits_until == 0 || hit > ticket.hit_then || answer.taken_by != ticket.waits_for;
  if (!gets_on && now >= ticket.waits_until)
    answer = claims_.claim(ticket.name, ticket.waits_for);
  else if (!gets_on)
    return true;
  ticket.claim = answer.claim;
  ticket.waits_for = answer.taken_by;
  if (answer.taken_by == 0) return false;
  ticket.waits_until = now + static_cast<std::uint64_t>(alone * 1e9);
  ticket.hit_then = hit;
  return true;
}

std::optional<Claim> SingleFlight::advance(Ticket& ticket, std::span<const Hash128> names,
                                           std::size_t computed, std::size_t most) {
  Ticket ahead;
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

void SingleFlight::withdraw(Ticket& ticket) { withdraw(std::exchange(ticket.claim, std::nullopt)); }

Hash128 SingleFlight::next(std::span<const Hash128> names, std::size_t computed,
                           std::size_t most) const {
  return names[std::min(round_up(computed + stretch_.least, stretch_.unit), most) - 1];
}

}  // namespace kvhive
