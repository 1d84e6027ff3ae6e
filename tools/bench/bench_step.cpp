// Measures the time that the actors take per step: the time between two runs of the executor, with
// the real ring and pool. The executor does nothing, or is busy for a millisecond, during which the
// next step may be planned.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>
#include <thread>

#include "actors/ring.hpp"
#include "actors/swapper_state.hpp"
#include "pool/processes/process_slot.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

/// Samples token 7 for every sequence, and notes the time between two calls. A device computes
/// meanwhile, so the thread sleeps as it waits.
class IdleRunner : public StepRunner {
 public:
  IdleRunner(std::vector<double>& gaps_us, std::chrono::microseconds step)
      : gaps_us_(gaps_us), step_(step) {}

  Expected<StepResults> run(const StepPlan& plan) override {
    if (last_ != Clock::time_point{})
      gaps_us_.push_back(Microseconds(Clock::now() - last_).count());
    if (step_.count() != 0) std::this_thread::sleep_for(step_);
    StepResults results;
    for (const auto& work : plan.work)
      if (work.samples) results.sampled.push_back({work.seq, {7, 0, {}}});
    last_ = Clock::now();
    return results;
  }

 private:
  std::vector<double>& gaps_us_;
  std::chrono::microseconds step_;
  Clock::time_point last_{};
};

/// One message to an actor with a thread of its own, and its answer, is two hops.
double hop_us() {
  ActorConfig config;
  caf::actor_system system(config);
  auto echo = system.spawn<caf::detached>([](caf::event_based_actor*) -> caf::behavior {
    return {[](std::uint64_t number) { return number; }};
  });
  caf::scoped_actor self(system);
  std::vector<double> trips;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto before = Clock::now();
    self->request(echo, caf::infinite, i).receive([](std::uint64_t) {}, [](const caf::error&) {});
    trips.push_back(Microseconds(Clock::now() - before).count());
  }
  self->send_exit(echo, caf::exit_reason::user_shutdown);
  return median(trips) / 2;
}

/// Fulfils the promise when the last request has ended.
class CountingSink : public OutputSink {
 public:
  CountingSink(std::size_t& open, std::promise<void>& done) : open_(open), done_(done) {}
  bool read() override { return true; }
  void wait() override {}
  bool start() override { return true; }
  void preempted() override {}
  void note(const RequestTimes&) override {}
  void room(const RoomStatus&) override {}
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

struct Case {
  std::chrono::microseconds step;  ///< how long the executor takes
  bool async;
};

/// The gaps between steps, in us.
std::vector<double> measure(std::size_t sequences, std::uint32_t steps, Case how) {
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
    parts.scheduler.max_num_seqs = parts.block_manager.max_num_seqs = 256;
    parts.scheduler.max_num_batched_tokens = parts.block_manager.max_num_batched_tokens = 32768;
    parts.block_manager.async_scheduling = how.async;
    parts.scheduler.max_model_len = 1u << 20;
    parts.scheduler.vocab_size = 1000;
    parts.swapper = std::make_unique<SwapperState>(memory);
    parts.runner = std::make_unique<IdleRunner>(gaps, how.step);
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
  return gaps;
}

double p99(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

void show(std::size_t sequences, std::uint32_t steps, double hop) {
  using std::chrono::microseconds;
  const auto bare = measure(sequences, steps, {microseconds(0), false});
  const auto busy = measure(sequences, steps / 4, {microseconds(1000), false});
  const auto ahead = measure(sequences, steps / 4, {microseconds(1000), true});
  std::printf("  %9zu %8.1f %8.1f %8.2f %8.1f %10.1f %8.1f %12.1f %8.1f %8.2f\n", sequences,
              median(bare), p99(bare), median(bare) / static_cast<double>(sequences),
              median(bare) / hop, median(busy), p99(busy), median(ahead), p99(ahead),
              median(ahead) / hop);
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  const bool is_brief = argc > 1 && std::string(argv[1]) == "--brief";
  const double hop = hop_us();
  std::printf(
      "Engine step outside the executor (scheduler, block manager, three messages), us; a "
      "message's hop: %.1f us\n"
      "            executor of 0 ms                      of 1 ms             of 1 ms, planned "
      "ahead\n"
      "  %9s %8s %8s %8s %8s %10s %8s %12s %8s %8s\n",
      hop, "sequences", "median", "p99", "each", "hops", "median", "p99", "median", "p99", "hops");
  for (const std::size_t sequences : {1, 8, 64, 256}) show(sequences, is_brief ? 200 : 3000, hop);
}
