#pragma once
// Whether moving a block between the tiers is worth it: a copy that costs more than computing the
// block anew is not made. Both prices are measured as the engine works; no clock in here.

#include <cstdint>

#include "actors/messages.hpp"

namespace kvhive {

class CopyPolicy {
 public:
  explicit CopyPolicy(std::uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  /// What a step did, and what it took. Steps that only decode are no measure: they pay for reading
  /// the whole model, which a prompt's tokens share.
  void learn(std::size_t copied_blocks, std::size_t tokens, std::size_t sequences,
             const StepTimes& times);

  /// An evicted block is copied out in the hope that it will be copied in: two copies.
  bool demotion_pays() { return pays(2); }
  bool promotion_pays() { return pays(1); }

  /// Seconds; 0 = not measured yet, and tried, therefore.
  double block_copy() const { return block_copy_; }
  double token() const { return token_; }
  /// As if measured: for tests.
  void set(double block_copy, double token) { block_copy_ = block_copy, token_ = token; }

 private:
  bool pays(double copies);

  std::uint32_t tokens_per_block_;
  double block_copy_ = 0;
  double token_ = 0;
};

}  // namespace kvhive
