#pragma once
// Decides whether to copy blocks between the tiers: a copy that takes longer than computing the
// block anew is not made. Both costs are measured while the engine works; this class reads no
// clock.

#include <cstdint>

#include "actors/messages.hpp"

namespace kvhive {

class CopyPolicy {
 public:
  explicit CopyPolicy(std::uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  /// Learns from a step's size and times. Steps that only decode are left out: each of their tokens
  /// pays for reading the whole model, while the tokens of a prompt share that.
  void learn(std::size_t copied_blocks, std::size_t tokens, std::size_t sequences,
             const StepTimes& times);

  /// Demoting a block pays only if it is copied in again later, so it costs two copies.
  bool demotion_pays() { return pays(2); }
  bool promotion_pays() { return pays(1); }

  /// Seconds; 0 = not measured yet: then copies are made, to be measured.
  double block_copy() const { return block_copy_; }
  double token() const { return token_; }
  /// Sets both as if they had been measured. For tests.
  void set(double block_copy, double token) { block_copy_ = block_copy, token_ = token; }

 private:
  bool pays(double copies);

  std::uint32_t tokens_per_block_;
  double block_copy_ = 0;
  double token_ = 0;
};

}  // namespace kvhive
