#include "tests/actors/oracle_runner.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint64_t kNoPast = 0x9e3779b97f4a7c15ull;

std::uint64_t extend(std::uint64_t past, TokenId token, std::uint64_t position) {
  std::uint64_t h = past ^ (static_cast<std::uint64_t>(token) << 32 | position);
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 27) * 0x94d049bb133111ebull;
  return h ^ h >> 31;
}

TokenId token_of(std::uint64_t past) { return static_cast<TokenId>(past % kOracleVocab); }

}  // namespace

TokenId oracle_next(std::span<const TokenId> sequence) {
  std::uint64_t past = kNoPast;
  for (std::size_t i = 0; i < sequence.size(); ++i) past = extend(past, sequence[i], i);
  return token_of(past);
}

OracleOutput oracle_output(std::span<const TokenId> prompt, const GenerationParams& params,
                           std::uint32_t max_model_len) {
  std::vector<TokenId> sequence(prompt.begin(), prompt.end());
  OracleOutput output;
  while (output.reason == FinishReason::none) {
    const TokenId next = oracle_next(sequence);
    sequence.push_back(next);
    output.tokens.push_back(next);
    const auto& stops = params.stop_token_ids;
    if ((next == kOracleEos && !params.ignore_eos) ||
        std::find(stops.begin(), stops.end(), next) != stops.end())
      output.reason = FinishReason::stop;
    else if (output.tokens.size() >= params.max_tokens || sequence.size() >= max_model_len)
      output.reason = FinishReason::length;
  }
  return output;
}

OracleRunner::TokenKv& OracleRunner::at(std::uint32_t block, std::size_t offset) const {
  const std::size_t bytes = memory_.geometry().kv.block_bytes();
  const std::size_t stride = bytes / memory_.geometry().tokens_per_block;
  KV_CHECK(stride >= sizeof(TokenKv), stride);
  return *reinterpret_cast<TokenKv*>(memory_.arena(Tier::device) + block * bytes + offset * stride);
}

Expected<std::vector<SampledToken>> OracleRunner::run(const StepPlan& plan) {
  written_.clear();
  for (const ScheduledSequence& work : plan.work) check_table(work);
  for (const ScheduledSequence& work : plan.work) write(work);
  std::vector<SampledToken> sampled;
  for (const ScheduledSequence& work : plan.work) {
    if (!work.samples) continue;
    const std::uint64_t past = read_back(work, work.start + work.tokens.size());
    sampled.push_back({work.seq, {token_of(past), 0, {}}});
  }
  return sampled;
}

/// This process holds every block. Blocks that the step writes are unpublished, held by no other
/// process, and in no other sequence's table.
void OracleRunner::check_table(const ScheduledSequence& work) {
  const std::uint32_t size = memory_.geometry().tokens_per_block;
  const std::size_t end = work.start + work.tokens.size();
  KV_CHECK(!work.tokens.empty() && work.blocks.size() == (end + size - 1) / size,
           work.blocks.size(), end);
  for (std::size_t i = 0; i < work.blocks.size(); ++i) {
    const std::uint32_t block = work.blocks[i].value;
    KV_CHECK(block != 0 && block < memory_.geometry().device_blocks, block);
    const BlockWord word{memory_.descriptors()[block].word.load()};
    KV_CHECK((word.holders() & holder_bit(slot_)) != 0, block, word.bits);
    if (i < work.start / size) continue;
    KV_CHECK(word.state() == BlockState::filling && word.holders() == holder_bit(slot_), block,
             word.bits);
    KV_CHECK(written_.insert(block).second, block);
  }
}

void OracleRunner::write(const ScheduledSequence& work) const {
  const std::uint32_t size = memory_.geometry().tokens_per_block;
  std::uint64_t past = read_back(work, work.start);
  for (std::size_t i = 0; i < work.tokens.size(); ++i) {
    const std::size_t position = work.start + i;
    at(work.blocks[position / size].value, position % size) = {
        work.tokens[i], static_cast<std::uint32_t>(position), past};
    past = extend(past, work.tokens[i], position);
  }
}

/// The hash of the sequence's first `tokens` tokens, computed from the arena alone. It is wrong if
/// a token's bytes are not those that were written for it.
std::uint64_t OracleRunner::read_back(const ScheduledSequence& work, std::size_t tokens) const {
  const std::uint32_t size = memory_.geometry().tokens_per_block;
  std::uint64_t past = kNoPast;
  for (std::size_t i = 0; i < tokens; ++i) {
    const TokenKv& kv = at(work.blocks[i / size].value, i % size);
    const bool is_damaged = kv.past != past;
    past = extend(past, kv.token, kv.position) + is_damaged;
  }
  return past;
}

void check_swaps(const PoolMemory& memory, ProcessSlot slot, const StepPlan& plan) {
  const std::uint32_t base = memory.geometry().device_blocks;
  const auto word = [&](std::uint32_t block) {
    return BlockWord{memory.descriptors()[block].word.load()};
  };
  const auto is_ours = [&](std::uint32_t block) {
    return (word(block).holders() & holder_bit(slot)) != 0;
  };
  const auto is_to_write = [&](std::uint32_t block) {
    return word(block).state() == BlockState::filling && word(block).holders() == holder_bit(slot);
  };
  std::set<std::uint32_t> destinations;
  for (const auto* pairs : {&plan.swap_out, &plan.demotions})
    for (const BlockPair& pair : *pairs) {
      KV_CHECK(is_ours(pair.source) && is_to_write(base + pair.destination), pair.source);
      KV_CHECK(destinations.insert(base + pair.destination).second, pair.destination);
    }
  for (const BlockPair& pair : plan.swap_in) {
    KV_CHECK(is_ours(base + pair.source) && is_to_write(pair.destination), pair.source);
    // Copies in and out run at the same time.
    KV_CHECK(!destinations.contains(base + pair.source), pair.source);
    KV_CHECK(destinations.insert(pair.destination).second, pair.destination);
  }
}

}  // namespace kvhive::testing
