#pragma once
// Decides whether to copy blocks between the tiers: a block is not copied if copying it takes
// longer than computing it again. Both times are measured while the engine works. This class reads
// no clock: the caller passes the times.

#include <cstdint>

#include "actors/messages.hpp"

namespace kvhive {

class CopyPolicy {
 public:
  explicit CopyPolicy(std::uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  /// Learns from a step's size and times. The times of steps that only decode are not used for the
  /// cost of a token: there, the time of reading the whole model is divided among few tokens; in a
  /// step with a prompt, it is divided among many.
  void learn(std::size_t copied_blocks, std::size_t tokens, std::size_t sequences,
             const StepTimes& times);

  /// Demoting a block pays only if it is copied in again later, so it costs two copies.
  bool demotion_pays() { return pays(2, tokens_per_block_); }
  bool promotion_pays() { return pays(1, tokens_per_block_); }
  /// Copying a sequence's blocks out and in again, instead of computing its tokens again.
  bool swap_pays(std::size_t blocks, std::size_t tokens) {
    return pays(2 * static_cast<double>(blocks), static_cast<double>(tokens));
  }

  /// Seconds per block and per token; 0 = not measured yet. As long as one is 0, copies are made,
  /// so that they can be measured.
  double block_copy() const { return block_copy_; }
  double token() const { return token_; }
  /// Sets both as if they had been measured. For tests.
  void set(double block_copy, double token) { block_copy_ = block_copy, token_ = token; }

 private:
  bool pays(double copies, double tokens);

  std::uint32_t tokens_per_block_;
  double block_copy_ = 0;
  double token_ = 0;
};

}  // namespace kvhive
