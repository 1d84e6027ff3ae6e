#include "tests/beside/decisions.hpp"

#include "actors/block_manager_state.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "base/check.hpp"
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
        groups_(config["groups"].size()) {
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
      submission.sink = std::make_shared<RecordingSink>(std::make_shared<Recording>());
      if (const auto salt = each.value("salt", std::string()); !salt.empty())
        submission.salt = {static_cast<std::uint64_t>(salt[0]), 1};
      ids_[++submitted_] = each["id"];
      scheduler_.submit(std::move(submission));
    }
    scheduler_.flush();
  }

  json step() {
    json told = {{"work", json::array()}, {"preempted", json::array()}};
    const auto request = scheduler_.next_step();
    if (!request) return told;
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
      if (work.samples)
        done.sampled.push_back(
            {work.seq,
             {next_token(id, static_cast<std::int64_t>(work.start + work.tokens.size())), 0, {}}});
    }
    for (const SeqId seq : plan.outcome.preempted) told["preempted"].push_back(ids_.at(seq.value));
    std::sort(told["preempted"].begin(), told["preempted"].end());
    manager_.finish_step(done);
    scheduler_.complete(done);
    return told;
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
  std::map<std::uint64_t, std::int64_t> ids_;  ///< by number of the sequence
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
