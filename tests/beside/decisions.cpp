#include "tests/beside/decisions.hpp"

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "actors/speculation/accepted.hpp"
#include "base/check.hpp"
#include "hashing/cache_salt.hpp"
#include "pool/care/fsck.hpp"
#include "tests/actors/recording_sink.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

using nlohmann::json;

constexpr std::int64_t kVocabulary = 1000;

TokenId next_token(std::int64_t request, std::int64_t position) {
  return static_cast<TokenId>((request * 131 + position * 17 + 7) % kVocabulary);
}

/// Guesses at the tokens from `position` on: some of them wrong, sometimes none.
std::vector<TokenId> guesses_at(std::int64_t request, std::int64_t position, std::int64_t most) {
  const std::int64_t count = std::min((request * 7 + position * 5) % 6, most);
  std::vector<TokenId> guesses;
  for (std::int64_t i = position; i < position + count; ++i)
    guesses.push_back(next_token(request, i + ((request + i * 3) % 5 == 0 ? 1 : 0)));
  return guesses;
}

TokenId family_token(std::int64_t family, std::int64_t position) {
  return static_cast<TokenId>((family * 7919 + position * 31 + position / 50) % kVocabulary);
}

std::vector<TokenId> tokens_of(const json& prompt) {
  std::vector<TokenId> tokens;
  for (const json& piece : prompt) {
    const std::int64_t family = piece[0], from = piece[1], count = piece[2];
    for (std::int64_t p = from; p < from + count; ++p)
      tokens.push_back(family >= 0 ? family_token(family, p) : next_token(-family, p));
  }
  return tokens;
}

CacheGroups groups_of(const json& listed) {
  CacheGroups groups;
  groups.count = static_cast<std::uint32_t>(listed.size());
  for (std::size_t g = 0; g < listed.size(); ++g) {
    const std::string kind = listed[g][0];
    const auto span = listed[g].size() > 1 ? listed[g][1].get<std::uint32_t>() : 0;
    groups.group[g] = {kind == "full"     ? CacheKind::full
                       : kind == "window" ? CacheKind::sliding_window
                                          : CacheKind::chunked_local,
                       span};
  }
  return groups;
}

PoolMemory pool_of(const json& config) {
  PoolGeometry geometry = small_geometry(config["blocks"], 0, config["block_size"], 2);
  geometry.models[0].groups = groups_of(config["groups"]);
  return private_pool(geometry);
}

SchedulerConfig scheduler_config(const json& config) {
  SchedulerConfig scheduler;
  scheduler.policy =
      config["policy"] == "fcfs" ? SchedulingPolicy::fcfs : SchedulingPolicy::priority;
  scheduler.max_num_seqs = config["max_num_seqs"];
  scheduler.max_num_batched_tokens = config["max_num_batched_tokens"];
  scheduler.max_model_len = config["max_model_len"];
  scheduler.vocab_size = kVocabulary;
  return scheduler;
}

BlockManagerConfig manager_config(const json& config) {
  BlockManagerConfig manager;
  manager.watermark = config["watermark"];
  manager.max_num_seqs = config["max_num_seqs"];
  manager.max_num_batched_tokens = config["max_num_batched_tokens"];
  if (const json interval = config.value("retention", json()); !interval.is_null())
    manager.retention.interval = interval;
  manager.long_prefill_token_threshold = config["long_prefill_token_threshold"];
  return manager;
}

class Engine {
 public:
  explicit Engine(const json& config)
      : memory_(pool_of(config)),
        pool_(memory_, ProcessSlot{0}),
        scheduler_(scheduler_config(config)),
        manager_(pool_, manager_config(config)),
        groups_(config["groups"].size()),
        most_guesses_(config.value("guesses", 0)),
        max_model_len_(config["max_model_len"]) {
    occupy(memory_, ProcessSlot{0});
  }

  void come(const json& step) {
    for (const json& id : step.value("abort", json::array()))
      scheduler_.abort({{{1, id.get<std::uint32_t>()}}, {}});
    for (const json& each : step.value("add", json::array())) {
      Submission submission;
      submission.key = {1, each["id"]};
      submission.prompt = tokens_of(each["prompt"]);
      submission.params.max_tokens = each["max_tokens"];
      submission.params.ignore_eos = true;
      submission.params.priority = each.value("priority", 0);
      if (each.contains("prompt_logprobs"))
        submission.params.prompt_logprobs = each["prompt_logprobs"];
      submission.sink = std::make_shared<RecordingSink>(std::make_shared<Recording>());
      submission.salt = start_key(each.value("salt", ""), each.value("adapter", ""));
      ids_[++submitted_] = each["id"];
      ends_[each["id"]] = std::min<std::int64_t>(
          max_model_len_, std::ssize(submission.prompt) + submission.params.max_tokens);
      scheduler_.submit(std::move(submission));
    }
    scheduler_.flush();
  }

  json step() {
    json told = {{"work", json::array()}, {"preempted", json::array()}};
    auto request = scheduler_.next_step();
    if (!request) return told;
    guess(*request);
    const StepPlan plan = manager_.plan(*request);
    StepDone done;
    done.step = plan.step;
    done.outcome = plan.outcome;
    for (const ScheduledSequence& work : plan.work) {
      const std::int64_t id = ids_.at(work.seq.value);
      json tables = json::array();
      const std::size_t of_group = work.blocks.size() / groups_;
      for (std::size_t g = 0; g < groups_; ++g) {
        tables.push_back(json::array());
        for (std::size_t i = 0; i < of_group; ++i)
          tables.back().push_back(work.blocks[g * of_group + i].value);
      }
      told["work"].push_back({id, work.start, work.tokens.size(), tables});
    }
    done.sampled = sample(plan);
    for (const SeqId seq : plan.outcome.preempted) told["preempted"].push_back(ids_.at(seq.value));
    std::sort(told["preempted"].begin(), told["preempted"].end());
    manager_.finish_step(done);
    scheduler_.complete(done);
    return told;
  }

  /// The tokens that stand. Notes how long their sequences are then.
  std::vector<SampledToken> sample(const StepPlan& plan) {
    lengths_.clear();
    std::vector<GeneratedToken> tokens;
    const std::vector<SampledRow> rows = sampled_rows(plan);
    for (const SampledRow& row : rows) {
      const auto position = static_cast<std::int64_t>(row.position());
      lengths_.try_emplace(row.work->seq.value, position);
      tokens.push_back({next_token(ids_.at(row.work->seq.value), position), 0, {}});
    }
    std::vector<SampledToken> standing = accepted(rows, std::move(tokens));
    for (const SampledToken& each : standing) ++lengths_.at(each.seq.value);
    return standing;
  }

  /// Behind the tokens of the last step.
  void guess(StepRequest& request) const {
    for (const SeqId seq : request.running) {
      const auto length = lengths_.find(seq.value);
      if (length == lengths_.end()) continue;
      const std::int64_t id = ids_.at(seq.value), left = ends_.at(id) - length->second;
      auto guesses = guesses_at(id, length->second, std::min(most_guesses_, left - 1));
      if (!guesses.empty()) request.drafts.push_back({seq, std::move(guesses)});
    }
  }

  bool is_done() const { return scheduler_.unfinished() == 0; }
  void check() const { KV_CHECK(fsck(memory_, Moment::quiescent).is_clean()); }

 private:
  PoolMemory memory_;
  BlockPool pool_;
  SchedulerState scheduler_;
  BlockManagerState manager_;
  std::size_t groups_;
  std::uint64_t submitted_ = 0;
  std::int64_t most_guesses_, max_model_len_;
  std::map<std::uint64_t, std::int64_t> ids_;      ///< by number of the sequence
  std::map<std::uint64_t, std::int64_t> lengths_;  ///< of those that the last step sampled
  std::map<std::int64_t, std::int64_t> ends_;      ///< the most tokens of a request, by its id
};

}  // namespace

void decide(const json& config, std::span<const json> steps,
            const std::function<void(const json&)>& tell) {
  Engine engine(config);
  for (std::size_t i = 0; i < steps.size() || !engine.is_done(); ++i) {
    if (i < steps.size()) engine.come(steps[i]);
    tell(engine.step());
    if (i % 1000 == 0) engine.check();
  }
  engine.check();
}

}  // namespace kvhive::testing
