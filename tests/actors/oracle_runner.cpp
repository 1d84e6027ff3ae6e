#include "tests/actors/oracle_runner.hpp"

#include <algorithm>

#include "actors/speculation/accepted.hpp"
#include "base/check.hpp"
#include "kernels/block_copy.hpp"

namespace kvhive::testing {
namespace {

/// Before the first token. What another voice has computed has another past.
std::uint64_t no_past(OracleVoice voice) {
  return 0x9e3779b97f4a7c15ull *
         (static_cast<std::uint64_t>(voice.adapter) + 2 + 1000 * std::uint64_t{voice.model.value});
}

std::uint64_t extend(std::uint64_t past, TokenId token, std::uint64_t position) {
  std::uint64_t h = past ^ (static_cast<std::uint64_t>(token) << 32 | position);
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 27) * 0x94d049bb133111ebull;
  return h ^ h >> 31;
}

std::uint64_t past_of(std::span<const TokenId> sequence, OracleVoice voice) {
  std::uint64_t past = no_past(voice);
  for (std::size_t i = 0; i < sequence.size(); ++i) past = extend(past, sequence[i], i);
  return past;
}

TokenId token_of(std::uint64_t past) { return static_cast<TokenId>(past % kOracleVocab); }

/// What rules make of it: the answer so far counts twice.
TokenId ruled_token_of(std::uint64_t past, std::span<const TokenId> answer) {
  for (const TokenId token : answer) past = extend(past, token, answer.size());
  return token_of(past);
}

/// Any numbers that depend on the token, on all before it, and on K.
PromptToken score(TokenId token, std::uint64_t past, std::uint32_t likeliest) {
  PromptToken score{token,
                    -static_cast<float>((past + static_cast<std::uint64_t>(token)) % 97),
                    static_cast<std::uint32_t>(past % kOracleVocab) + 1,
                    {}};
  for (std::uint32_t i = 0; i < likeliest; ++i)
    score.top.push_back({token_of(past + i), -static_cast<float>(i)});
  return score;
}

}  // namespace

std::vector<PromptToken> oracle_scores(std::span<const TokenId> prompt, std::uint32_t likeliest,
                                       OracleVoice voice) {
  std::vector<PromptToken> scores = {{prompt.front(), 0, 0, {}}};
  std::uint64_t past = no_past(voice);
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    past = extend(past, prompt[i - 1], i - 1);
    scores.push_back(score(prompt[i], past, likeliest));
  }
  return scores;
}

TokenId oracle_next(std::span<const TokenId> sequence, OracleVoice voice) {
  return token_of(past_of(sequence, voice));
}

OracleOutput oracle_output(std::span<const TokenId> prompt, const GenerationParams& params,
                           std::uint32_t max_model_len, OracleVoice voice) {
  std::vector<TokenId> sequence(prompt.begin(), prompt.end());
  OracleOutput output;
  while (output.reason == FinishReason::none) {
    const TokenId next = params.rules.change_no_logits()
                             ? oracle_next(sequence, voice)
                             : ruled_token_of(past_of(sequence, voice), output.tokens);
    sequence.push_back(next);
    output.tokens.push_back(next);
    const auto& stops = params.stop_token_ids;
    const bool is_end = (next == kOracleEos && !params.ignore_eos) ||
                        std::find(stops.begin(), stops.end(), next) != stops.end();
    if (is_end && output.tokens.size() >= params.rules.min_tokens)
      output.reason = FinishReason::stop;
    else if (output.tokens.size() >= params.max_tokens || sequence.size() >= max_model_len)
      output.reason = FinishReason::length;
  }
  return output;
}

OracleRunner::TokenKv& OracleRunner::at(std::uint32_t block, std::size_t offset) const {
  const std::size_t bytes = memory_.geometry().block_bytes();
  const std::size_t stride = bytes / cache_.tokens_per_block;
  KV_CHECK(stride >= sizeof(TokenKv), stride);
  return *reinterpret_cast<TokenKv*>(memory_.arena(Tier::device) + block * bytes + offset * stride);
}

Expected<StepResults> OracleRunner::run(const StepPlan& plan) {
  written_.clear();
  std::byte* const device = memory_.arena(Tier::device);
  block_copy_cpu(whole_blocks(device, device, memory_.geometry().block_bytes(), plan.copies));
  for (const ScheduledSequence& work : plan.work)
    for (std::size_t g = 0; g < cache_.groups.count; ++g) check_table(work, g);
  for (const ScheduledSequence& work : plan.work) write(work);
  const std::vector<SampledRow> rows = sampled_rows(plan);
  std::vector<GeneratedToken> sampled;
  for (const SampledRow& row : rows) {
    const std::uint64_t past = read_back(*row.work, row.position() - 1, row.position());
    sampled.push_back(
        {row.work->logits ? ruled_token_of(past, row.answer()) : token_of(past), 0, {}});
  }
  StepResults results{accepted(rows, std::move(sampled))};
  for (const ScheduledSequence& work : plan.work) {
    if (work.scored.empty()) continue;
    const std::size_t first = work.start + work.first_scored_row + 1;
    results.scored.push_back({work.seq, static_cast<std::uint32_t>(first), {}});
    for (std::size_t i = 0; i < work.scored.size(); ++i)
      results.scored.back().tokens.push_back(
          score(work.scored[i], read_back(work, first + i - 1, first + i), work.prompt_logprobs));
  }
  return results;
}

std::span<const BlockId> OracleRunner::table_of(const ScheduledSequence& work,
                                                std::size_t group) const {
  const std::size_t blocks = work.blocks.size() / cache_.groups.count;
  return std::span(work.blocks).subspan(group * blocks, blocks);
}

/// This process holds every block that the step reads, and no block stands in other places. Blocks
/// that the step writes are unpublished, held by no other process, and in no other table.
void OracleRunner::check_table(const ScheduledSequence& work, std::size_t group) {
  const std::uint32_t size = cache_.tokens_per_block;
  const std::size_t end = work.start + work.tokens.size();
  const std::span<const BlockId> table = table_of(work, group);
  KV_CHECK(!work.tokens.empty() && table.size() == (end + size - 1) / size, table.size(), end);
  const std::size_t first = cache_.groups.group[group].first_block(work.start, size);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::uint32_t block = table[i].value;
    KV_CHECK((block == 0) == (i < first) && block < memory_.geometry().device_blocks, block, i,
             first);
    if (block == 0) continue;
    const BlockWord word{memory_.descriptors()[block].word.load()};
    KV_CHECK((word.holders() & holder_bit(slot_)) != 0, block, word.bits);
    if (i < work.start / size) continue;
    KV_CHECK(word.state() == BlockState::filling && word.holders() == holder_bit(slot_), block,
             word.bits);
    KV_CHECK(written_.insert(block).second, block);
  }
}

void OracleRunner::write(const ScheduledSequence& work) const {
  const std::uint32_t size = cache_.tokens_per_block;
  std::uint64_t past = read_back(work, work.start, work.start);
  for (std::size_t i = 0; i < work.tokens.size(); ++i) {
    const std::size_t position = work.start + i;
    const bool is_embedded = work.embedded && position < work.embedded->rows();
    const TokenId token =
        is_embedded ? static_cast<TokenId>(work.embedded->row(position).front()) : work.tokens[i];
    for (std::size_t g = 0; g < cache_.groups.count; ++g)
      at(table_of(work, g)[position / size].value, position % size) = {
          token, static_cast<std::uint32_t>(position), past};
    past = extend(past, token, position);
  }
}

/// The hash of the sequence's first `tokens` tokens, computed from the arena alone, from what the
/// token at position `query` sees. It is wrong if a token's bytes are not those that were written
/// for it, or if groups disagree. Some group must see the token before.
std::uint64_t OracleRunner::read_back(const ScheduledSequence& work, std::size_t query,
                                      std::size_t tokens) const {
  const std::uint32_t size = cache_.tokens_per_block;
  if (tokens == 0) return no_past(voice_of(work));
  std::uint64_t agreed = 0;
  std::size_t seen = 0, damaged = 0;
  for (std::size_t g = 0; g < cache_.groups.count; ++g) {
    const std::size_t first = cache_.groups.group[g].skipped_tokens(query);
    if (first >= tokens) continue;
    std::uint64_t past = no_past(voice_of(work));
    for (std::size_t i = first; i < tokens; ++i) {
      const TokenKv& kv = at(table_of(work, g)[i / size].value, i % size);
      if (i == first && first != 0) past = kv.past;
      damaged += kv.past != past || kv.position != i;
      past = extend(past, kv.token, kv.position);
    }
    damaged += seen++ != 0 && past != agreed;
    agreed = past;
  }
  KV_CHECK(seen != 0, query, tokens);
  return agreed + damaged;
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
