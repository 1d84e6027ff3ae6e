#include "actors/speculation/accepted.hpp"

#include "base/check.hpp"

namespace kvhive {

std::vector<SampledRow> sampled_rows(const StepPlan& plan) {
  std::vector<SampledRow> rows;
  for (const ScheduledSequence& work : plan.work) {
    if (!work.samples) continue;
    const auto end = static_cast<std::uint32_t>(work.tokens.size());
    for (std::uint32_t row = end - 1 - work.drafts; row < end; ++row) rows.push_back({&work, row});
  }
  return rows;
}

std::vector<SampledToken> accepted(std::span<const SampledRow> rows,
                                   std::vector<GeneratedToken> sampled) {
  KV_CHECK(rows.size() == sampled.size(), rows.size(), sampled.size());
  std::vector<SampledToken> standing;
  const ScheduledSequence* wrong = nullptr;  // a draft of this sequence was not right
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [work, row] = rows[i];
    if (work == wrong) continue;
    const bool has_draft = row + 1 < work->tokens.size();
    if (has_draft && work->tokens[row + 1] != sampled[i].token) wrong = work;
    standing.push_back({work->seq, std::move(sampled[i])});
  }
  return standing;
}

}  // namespace kvhive
