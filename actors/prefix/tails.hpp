#pragma once
// The blocks that ended sequences had filled in part. The pool finds full blocks only; whoever goes
// on from such a sequence at once, as the next beams of a search do, copies its last block instead
// of computing it again.
//
// Source: vLLM V0 SelfAttnBlockSpaceManager.fork with copy on write. There parent and children are
// sequences of one group; here each is a request that any engine may get. So the copy is made when
// a child is admitted, and one that comes to another engine computes the block.
//
// Only sequences whose request says so leave a tail (GenerationParams::will_be_forked), and it is
// kept for a moment: it is memory that other engines cannot have. An engine gives its tails up when
// it lacks blocks, or when another says that it does.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pool/block_pool.hpp"

namespace kvhive {

class Tails {
 public:
  using Clock = std::function<std::uint64_t()>;  ///< nanoseconds
  static constexpr std::uint64_t kLife = 100'000'000;

  /// What stands for everything before a block: equal places have equal content before them.
  struct Place {
    Prefix parent;    ///< of the first group
    ExtraKey before;  ///< SequenceNames::before()

    friend bool operator==(const Place& a, const Place& b) {
      return a.parent.domain == b.parent.domain && a.parent.uid == b.parent.uid &&
             a.parent.depth == b.parent.depth && a.before == b.before;
    }
  };
  struct Found {
    std::span<const BlockId> blocks;  ///< by group; until something else is called
    std::size_t tokens = 0;           ///< that are in them, 1 at least
  };

  /// \param most  blocks that may be kept
  Tails(BlockPool& pool, std::size_t most, Clock clock)
      : pool_(pool), most_(most), clock_(std::move(clock)) {}

  /// Takes over the references to the blocks, one of each group, which hold `tokens`.
  void keep(const Place& place, std::span<const TokenId> tokens, std::vector<BlockId> blocks);
  /// The tail that has the most in common with `tokens`, which follow `place`.
  std::optional<Found> find(const Place& place, std::span<const TokenId> tokens) const;
  /// How many blocks are kept.
  std::size_t kept() const { return kept_; }
  /// How many are of domains of which `is_one` is true.
  using Domains = std::function<bool(DomainId)>;
  std::size_t kept(const Domains& is_one) const;
  /// Releases them.
  void drop(const Domains& is_one);
  /// Releases those that have been kept long enough.
  void drop_old();

 private:
  struct Tail {
    Place place;
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    std::uint64_t until;
  };
  void drop_of_largest();
  void drop_first();
  void release(const Tail& tail);

  BlockPool& pool_;
  std::size_t most_;
  Clock clock_;
  std::deque<Tail> tails_;  ///< the oldest first
  std::size_t kept_ = 0;    ///< blocks
};

}  // namespace kvhive
