// Measures the time that the actors take per step: the time between two runs of the executor, with
// the real ring and pool and an executor that does nothing.

#include <cstdio>
#include <future>
#include <string>

#include "actors/ring.hpp"
#include "actors/swapper_state.hpp"
#include "pool/processes/process_slot.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Samples token 7 for every sequence, and notes the time between two calls.
class IdleRunner : public StepRunner {
 public:
  explicit IdleRunner(std::vector<double>& gaps_us) : gaps_us_(gaps_us) {}

  Expected<StepResults> run(const StepPlan& plan) override {
    if (last_ != Clock::time_point{})
      gaps_us_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - last_).count());
    StepResults results;
    for (const auto& work : plan.work)
      if (work.samples) results.sampled.push_back({work.seq, {7, 0, {}}});
    last_ = Clock::now();
    return results;
  }

 private:
  std::vector<double>& gaps_us_;
  Clock::time_point last_{};
};

/// Fulfils the promise when the last request has ended.
class CountingSink : public OutputSink {
 public:
  CountingSink(std::size_t& open, std::promise<void>& done) : open_(open), done_(done) {}
  bool read() override { return true; }
  void wait() override {}
  bool start() override { return true; }
  void preempted() override {}
  void note(const RequestTimes&) override {}
  void admitted(const RequestStats&) override {}
  void prompt(std::size_t, std::span<const PromptToken>) override {}
  void token(const GeneratedToken&, std::string_view) override {}
  bool finished(FinishReason, const Error&, const RequestStats&, std::size_t) override {
    if (--open_ == 0) done_.set_value();
    return true;
  }
  void flush() override {}

 private:
  std::size_t& open_;
  std::promise<void>& done_;
};

void measure(std::size_t sequences, std::uint32_t steps) {
  PoolGeometry geometry{};
  geometry.device_blocks = static_cast<std::uint32_t>(sequences * (steps / 16 + 16) + 64);
  geometry.models[0].tokens_per_block = 16;
  const PoolMemory memory = *PoolMemory::create_private(geometry);
  sign_in(memory, ProcessSlot{0}, 0);
  BlockPool pool(memory, ProcessSlot{0});
  std::vector<double> gaps;
  gaps.reserve(steps + 16);
  std::promise<void> done;
  std::size_t open = sequences;
  {
    ActorConfig config;
    caf::actor_system system(config);
    RingParts parts;
    parts.pool = &pool;
    parts.scheduler.max_num_seqs = 128;
    parts.scheduler.max_num_batched_tokens = 8192;
    parts.scheduler.max_model_len = 1u << 20;
    parts.scheduler.vocab_size = 1000;
    parts.swapper = std::make_unique<SwapperState>(memory);
    parts.runner = std::make_unique<IdleRunner>(gaps);
    SchedulerHandle scheduler = spawn_ring(system, std::move(parts));
    SubmitBatch batch;
    for (std::uint32_t i = 0; i < sequences; ++i) {
      GenerationParams params;
      params.max_tokens = steps;
      std::vector<TokenId> prompt(100, static_cast<TokenId>(i % 1000));
      batch.submissions.push_back(
          {{1, i}, std::move(prompt), {}, params, std::make_shared<CountingSink>(open, done)});
    }
    caf::anon_send(scheduler, std::move(batch));
    done.get_future().wait();
    caf::anon_send_exit(scheduler, caf::exit_reason::user_shutdown);
  }
  std::vector<double> sorted = gaps;
  std::sort(sorted.begin(), sorted.end());
  std::printf("  %9zu %10.1f %10.1f %14.2f\n", sequences, median(gaps),
              sorted[sorted.size() * 99 / 100], median(gaps) / static_cast<double>(sequences));
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  std::printf(
      "Engine step outside the executor (scheduler, block manager, swapper, four messages); us\n");
  std::printf("  %9s %10s %10s %14s\n", "sequences", "median", "p99", "per sequence");
  for (const std::size_t sequences : {1, 8, 64})
    kvhive::bench::measure(sequences, is_brief ? 200 : 3000);
}
