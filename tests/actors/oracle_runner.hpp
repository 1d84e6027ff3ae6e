#pragma once
// A model that checks paging. The KV it writes for a token is the token, its position and a hash of
// all tokens before it, in each cache group. Its next token is a hash of the whole sequence, read
// back through the block tables: in a group with a window, from the tokens in the window. Any
// mistake in paging, swapping, sharing or publishing changes the tokens.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "actors/scheduler/scheduler_state.hpp"
#include "actors/step_runner.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

inline constexpr std::uint32_t kOracleVocab = 32;
inline constexpr TokenId kOracleEos = 31;

/// Who computes: models and their adapters say different things.
struct OracleVoice {
  std::int32_t adapter = -1;
  ModelId model{};
};

/// The token after `sequence`, from the oracle's definition alone.
TokenId oracle_next(std::span<const TokenId> sequence, OracleVoice voice = {});

/// All tokens that a request generates, and why it ends. The oracle does not know stop strings. Of
/// rules it knows that there are some, and min_tokens.
struct OracleOutput {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::none;
};
OracleOutput oracle_output(std::span<const TokenId> prompt, const GenerationParams& params,
                           std::uint32_t max_model_len, OracleVoice voice = {});

/// How the oracle scores a prompt.
std::vector<PromptToken> oracle_scores(std::span<const TokenId> prompt, std::uint32_t likeliest,
                                       OracleVoice voice = {});

/// Computes from an embedding of one value as from a token of that number, which is none of the
/// vocabulary.
class OracleRunner : public StepRunner {
 public:
  /// \param slot   plans may only use blocks that this slot holds
  /// \param model  whose groups and blocks the plans are of
  OracleRunner(const PoolMemory& memory, ProcessSlot slot, ModelId model = {})
      : memory_(memory), slot_(slot), model_(model), cache_(memory.geometry()[model]) {}

  Expected<StepResults> run(const StepPlan& plan) override;

 private:
  /// The bytes of one token in the arena.
  struct TokenKv {
    TokenId token;
    std::uint32_t position;
    std::uint64_t past;  ///< hash of all tokens before this one
  };
  OracleVoice voice_of(const ScheduledSequence& work) const { return {work.adapter, model_}; }
  TokenKv& at(std::uint32_t block, std::size_t offset) const;
  std::span<const BlockId> table_of(const ScheduledSequence& work, std::size_t group) const;
  void check_table(const ScheduledSequence& work, std::size_t group);
  void write(const ScheduledSequence& work) const;
  std::uint64_t read_back(const ScheduledSequence& work, std::size_t query,
                          std::size_t tokens) const;

  const PoolMemory& memory_;
  ProcessSlot slot_;
  ModelId model_;
  ModelCache cache_;
  std::set<std::uint32_t> written_;  ///< blocks written by this step
};

/// Checks that a plan's copies keep invariant 3 (ARCHITECTURE.md). They read only blocks that this
/// slot holds, and write only unpublished blocks that no other slot holds. No copy into the device
/// reads a block that a copy of the same plan writes.
void check_swaps(const PoolMemory& memory, ProcessSlot slot, const StepPlan& plan);

}  // namespace kvhive::testing
