#pragma once
// A model that is nothing but an oracle for paging: its KV of a token is the token, its position
// and a hash of everything before it; its next token is a hash of the whole sequence as read back
// through the block table. Any mistake in paging, swapping, sharing or publishing changes the
// tokens.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "actors/scheduler_state.hpp"
#include "actors/step_runner.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

inline constexpr std::uint32_t kOracleVocab = 32;
inline constexpr TokenId kOracleEos = 31;

/// The token after `sequence`, from the oracle's definition alone.
TokenId oracle_next(std::span<const TokenId> sequence);

/// All that a request generates, and why it ends there. Stop strings are not known here.
struct OracleOutput {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::none;
};
OracleOutput oracle_output(std::span<const TokenId> prompt, const GenerationParams& params,
                           std::uint32_t max_model_len);

class OracleRunner : public StepRunner {
 public:
  /// \param slot  whose blocks the plans may touch
  OracleRunner(const PoolMemory& memory, ProcessSlot slot) : memory_(memory), slot_(slot) {}

  Expected<std::vector<SampledToken>> run(const StepPlan& plan) override;

 private:
  /// What stands in the arena for one token.
  struct TokenKv {
    TokenId token;
    std::uint32_t position;
    std::uint64_t past;  ///< of all tokens before this one
  };
  TokenKv& at(std::uint32_t block, std::size_t offset) const;
  void check_table(const ScheduledSequence& work);
  void write(const ScheduledSequence& work) const;
  std::uint64_t read_back(const ScheduledSequence& work, std::size_t tokens) const;

  const PoolMemory& memory_;
  ProcessSlot slot_;
  std::set<std::uint32_t> written_;  ///< blocks written by this step
};

/// The kernels' side of invariant 3: a swap reads blocks that are held, and writes blocks that are
/// nobody else's; nothing that leaves by a plan comes in by it.
void check_swaps(const PoolMemory& memory, ProcessSlot slot, const StepPlan& plan);

}  // namespace kvhive::testing
