#pragma once
// Single flight: of several requests that need the same beginning of a prompt, in this engine or in
// others, one computes it and the others wait for its blocks.
//
// Who computes a prompt has claimed (pool/processes/claims.hpp) the name of the block with which
// its next stretch ends. A name stands for all tokens before it, so whoever would claim the same
// name would compute the same. Stretches end at multiples of 16 blocks, so that two prompts that
// share a long beginning and no more claim the same; and one has at least 8 blocks, if the prompt
// does: nobody waits for a step of another engine to be spared less.
//
// Only running sequences have claims, and they wait for nobody: there is no cycle. Nobody waits
// longer for one process than the patience that the caller gives it, whatever comes meanwhile. Who
// has waited so long takes the claim over; those who wait, too, wait for it from then on, with new
// patience: what a stopped engine had begun is again computed once.

#include <functional>
#include <optional>
#include <span>

#include "pool/processes/claims.hpp"

namespace kvhive {

class SingleFlight {
 public:
  using Clock = std::function<std::uint64_t()>;  ///< nanoseconds
  struct Stretch {
    std::size_t unit = 16, least = 8;  ///< blocks
  };

  SingleFlight(Claims claims, Clock clock, const Stretch& stretch)
      : claims_(claims), clock_(std::move(clock)), stretch_(stretch) {}

  /// What can be claimed of a sequence: its full blocks, as they are found since the last reset.
  struct Names {
    std::span<const Hash128> blocks;
    Resets resets{};
  };

  /// One sequence's part.
  struct Ticket {
    std::optional<Claim> claim{};   ///< while the sequence runs
    Hash128 name{};                 ///< what is claimed, or waited for
    std::uint64_t waits_for = 0;    ///< the claim's word; 0 = it does not wait
    std::uint64_t waits_until = 0;  ///< on the clock
    bool has_waited = false;        ///< at all; for the statistics
  };

  /// Whether nothing has changed for a sequence that waits: no lookup is worth its time.
  bool still_waits(const Ticket& ticket) const;
  /// Asked for a sequence that could run now. True = it waits. False = it computes; it has claimed
  /// what it computes first, if that was to be had.
  ///
  /// \param hit       published blocks that were found
  /// \param most      blocks that a lookup could find; from here on nothing is claimed
  /// \param patience  seconds
  bool waits(Ticket& ticket, const Names& names, std::size_t hit, std::size_t most,
             double patience);
  /// The sequence, which runs, has computed `computed` blocks. Claims the next stretch. The caller
  /// then publishes the blocks, and then withdraws the claim that is returned: so whoever looks
  /// finds the blocks, or a claim before them, and a claim behind them.
  [[nodiscard]] std::optional<Claim> advance(Ticket& ticket, const Names& names,
                                             std::size_t computed, std::size_t most);
  void withdraw(const std::optional<Claim>& claim);
  /// The sequence computes no more for now.
  void withdraw(Ticket& ticket);

 private:
  /// The name of the block with which the stretch behind `computed` blocks ends.
  Hash128 next(const Names& names, std::size_t computed, std::size_t most) const;

  Claims claims_;
  Clock clock_;
  Stretch stretch_;
};

}  // namespace kvhive
