// Recorded traffic through scheduler and block manager, without a model: which blocks requests find
// and get, and what is evicted for them, as vLLM's block manager decided it; the same if two
// engines over one pool take the requests in turn.

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/scheduler/scheduler_state.hpp"
#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "pool/care/fsck.hpp"
#include "tests/actors/recording_sink.hpp"
#include "tests/support/private_pool.hpp"
#include "tools/replay/replay.hpp"
#include "tools/replay/sha256.hpp"

namespace kvhive::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A content id of a trace fills a block of two tokens; what fills none is one token.
constexpr std::uint32_t kBlockTokens = 2;
constexpr std::uint32_t kVocabulary = 0x7fffffff;

struct Request {
  std::vector<TokenId> prompt;
  std::uint32_t output_tokens = 0;
  /// What it generates, and the half block at the end of its prompt: in no other request.
  TokenId own_token = 0;
  std::size_t blocks() const { return (prompt.size() + 1) / kBlockTokens; }
};

Request request_of(const TraceRequest& traced, std::uint32_t number, std::uint32_t block_tokens,
                   ReplayMode::Decode decode) {
  Request request;
  request.own_token = static_cast<TokenId>(0x40000000 | number);
  const std::size_t full = traced.full_blocks(block_tokens);
  for (std::size_t i = 0; i < full; ++i) {
    request.prompt.push_back(static_cast<TokenId>(traced.content[i]));
    request.prompt.push_back(static_cast<TokenId>(traced.content[i] >> 32));
  }
  if (traced.has_tail(block_tokens)) request.prompt.push_back(request.own_token);
  if (decode == ReplayMode::Decode::yes) {
    const std::uint64_t blocks = (traced.output_tokens + block_tokens - 1) / block_tokens;
    request.output_tokens = static_cast<std::uint32_t>(kBlockTokens * blocks);
  }
  return request;
}

enum class Order : std::uint32_t {
  submit,      ///< and try to admit
  try_again,   ///< to admit what was submitted
  end_oldest,  ///< let it generate, then end it
  tell,        ///< how many blocks it has evicted, and the free queue as it sees it
};
enum class Outcome : std::uint32_t { done, no_room, rejected };
struct Answer {
  Outcome outcome = Outcome::done;
  std::uint32_t number = 0;  ///< of the hit blocks, of the ended request, or of evictions
  std::vector<std::uint32_t> blocks{};
};

SchedulerConfig all_at_once() {
  SchedulerConfig config;
  config.max_num_seqs = 1024;
  config.max_num_batched_tokens = 1u << 24;
  config.max_model_len = 1u << 24;
  config.vocab_size = kVocabulary;
  return config;
}

/// Scheduler and block manager. Tokens come when an order says so.
class Engine {
 public:
  Engine(const PoolMemory& memory, ProcessSlot slot, std::span<const Request> requests)
      : requests_(requests),
        pool_(memory, slot),
        scheduler_(all_at_once()),
        manager_(pool_, {.max_num_seqs = 1024, .max_num_batched_tokens = 1u << 24}) {
    occupy(memory, slot);
  }

  Answer obey(Order order, std::uint32_t number) {
    switch (order) {
      case Order::submit: submit(number); return admit();
      case Order::try_again: return admit();
      case Order::end_oldest: return end_oldest();
      case Order::tell: break;
    }
    Answer told{Outcome::done,
                static_cast<std::uint32_t>(pool_.counters()["evicted_blocks"].load())};
    for (const BlockId block : pool_.free_queue(Tier::device)) told.blocks.push_back(block.value);
    return told;
  }

 private:
  struct Running {
    std::uint32_t number;
    SeqId seq;
    std::vector<std::uint32_t> blocks;
  };

  void submit(std::uint32_t number) {
    Submission submission;
    submission.key = {1, number};
    submission.prompt = requests_[number].prompt;
    submission.params.max_tokens = requests_[number].output_tokens + 1;
    submission.params.ignore_eos = true;
    submission.sink = std::make_shared<RecordingSink>(std::make_shared<Recording>());
    scheduler_.submit(std::move(submission));
    scheduler_.flush();
    submitted_ = number;
  }

  Answer admit() {
    const StepOutcome outcome = step({});
    if (!outcome.rejected.empty()) return {Outcome::rejected};
    if (outcome.admitted.empty()) return {Outcome::no_room};
    return {Outcome::done, outcome.admitted.front().cached_tokens / kBlockTokens};
  }

  Answer end_oldest() {
    const Request& request = requests_[running_.front().number];
    for (std::uint32_t k = 0; k < request.output_tokens; ++k)
      step({{running_.front().seq, {request.own_token, 0, {}}}});
    step({});  // computes the last token
    Answer ended{Outcome::done, running_.front().number, running_.front().blocks};
    running_.pop_front();
    scheduler_.abort({{{1, ended.number}}, {}});
    step({});  // releases the blocks
    return ended;
  }

  StepOutcome step(std::vector<SampledToken> sampled) {
    const auto request = scheduler_.next_step();
    if (!request) return {};
    StepPlan plan = manager_.plan(*request);
    for (const ScheduledSequence& work : plan.work) {
      auto running = std::find_if(running_.begin(), running_.end(),
                                  [&](const Running& each) { return each.seq == work.seq; });
      if (running == running_.end()) running = running_.insert(running, {submitted_, work.seq, {}});
      running->blocks.clear();
      for (const BlockId block : work.blocks) running->blocks.push_back(block.value);
    }
    StepDone done{plan.step, std::move(plan.outcome), std::move(sampled), {}};
    manager_.finish_step(done);
    scheduler_.complete(done);
    return std::move(done.outcome);
  }

  std::span<const Request> requests_;
  BlockPool pool_;
  SchedulerState scheduler_;
  BlockManagerState manager_;
  std::deque<Running> running_;
  std::uint32_t submitted_ = 0;
};

using Obey = std::function<Answer(Order, std::uint32_t)>;

/// An engine in a process of its own, which ends when nobody gives it orders any more.
class RemoteEngine {
 public:
  RemoteEngine(const PoolMemory& memory, ProcessSlot slot, std::span<const Request> requests) {
    int ends[2];
    KV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    pid_ = fork();
    KV_CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    socket_ = UniqueFd();
    Engine engine(memory, slot, requests);
    std::uint32_t order[2];
    while (recv(theirs.get(), order, sizeof order, MSG_WAITALL) == sizeof order) {
      const Answer answer = engine.obey(Order(order[0]), order[1]);
      const std::uint32_t head[3] = {std::uint32_t(answer.outcome), answer.number,
                                     std::uint32_t(answer.blocks.size())};
      put(theirs.get(), head);
      put(theirs.get(), answer.blocks);
    }
    _exit(0);
  }
  ~RemoteEngine() {
    socket_ = UniqueFd();
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  RemoteEngine(const RemoteEngine&) = delete;
  RemoteEngine& operator=(const RemoteEngine&) = delete;

  Answer obey(Order order, std::uint32_t number) {
    put(socket_.get(), std::array{std::uint32_t(order), number});
    std::array<std::uint32_t, 3> head{};
    get(head);
    Answer answer{Outcome(head[0]), head[1], std::vector<std::uint32_t>(head[2])};
    get(answer.blocks);
    return answer;
  }

 private:
  static void put(int socket, std::span<const std::uint32_t> words) {
    for (auto bytes = std::as_bytes(words); !bytes.empty();) {
      const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      KV_CHECK(sent > 0);
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  void get(std::span<std::uint32_t> words) {
    if (words.empty()) return;
    const ssize_t got = recv(socket_.get(), words.data(), words.size_bytes(), MSG_WAITALL);
    KV_CHECK(got == ssize_t(words.size_bytes()), got);
  }

  UniqueFd socket_;
  pid_t pid_ = -1;
};

json drive(std::span<const Request> requests, std::span<const Obey> engines, std::size_t capacity,
           std::size_t in_flight) {
  std::deque<const Obey*> running;
  std::vector<std::uint32_t> hits;
  std::uint64_t rejected = 0, evictions = 0;
  Sha256 ids, all_hits, free_queue;
  const auto end_oldest = [&] {
    const Answer ended = (*running.front())(Order::end_oldest, 0);
    running.pop_front();
    ids.add(std::array{ended.number, static_cast<std::uint32_t>(ended.blocks.size())});
    ids.add(ended.blocks);
  };
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const Obey& engine = engines[i % engines.size()];
    if (requests[i].blocks() <= capacity)
      while (running.size() >= in_flight) end_oldest();
    Answer answer = engine(Order::submit, i);
    for (; answer.outcome == Outcome::no_room; answer = engine(Order::try_again, 0)) end_oldest();
    hits.push_back(answer.number);
    if (answer.outcome == Outcome::rejected)
      ++rejected;
    else
      running.push_back(&engine);
  }
  while (!running.empty()) end_oldest();
  for (const Obey& engine : engines) evictions += engine(Order::tell, 0).number;
  free_queue.add(engines.front()(Order::tell, 0).blocks);
  all_hits.add(hits);
  return {{"hit_blocks", std::accumulate(hits.begin(), hits.end(), std::uint64_t{0})},
          {"evictions", evictions},
          {"rejected", rejected},
          {"hits_sha256", all_hits.finish()},
          {"block_ids_sha256", ids.finish()},
          {"free_queue_sha256", free_queue.finish()}};
}

enum class Engines : std::uint8_t { one, two_processes };

void expect_decisions(const std::vector<TraceRequest>& trace, std::uint32_t block_tokens,
                      const json& expected, Engines engines) {
  SCOPED_TRACE(expected["mode"].get<std::string>() + ":" + expected["capacity"].dump());
  const ReplayMode mode = *ReplayMode::parse(expected["mode"]);
  std::vector<Request> requests;
  for (const TraceRequest& traced : trace)
    requests.push_back(
        request_of(traced, static_cast<std::uint32_t>(requests.size()), block_tokens, mode.decode));
  PoolGeometry geometry{};
  geometry.device_blocks = expected["capacity"].get<std::uint32_t>() + 1;
  geometry.models[0].tokens_per_block = kBlockTokens;
  const PoolMemory memory = private_pool(geometry);
  json decided;
  if (engines == Engines::one) {
    Engine engine(memory, ProcessSlot{0}, requests);
    const std::array obey{Obey(std::bind_front(&Engine::obey, &engine))};
    decided = drive(requests, obey, expected["capacity"], mode.in_flight);
  } else {
    RemoteEngine first(memory, ProcessSlot{0}, requests);
    RemoteEngine second(memory, ProcessSlot{1}, requests);
    const std::array obey{Obey(std::bind_front(&RemoteEngine::obey, &first)),
                          Obey(std::bind_front(&RemoteEngine::obey, &second))};
    decided = drive(requests, obey, expected["capacity"], mode.in_flight);
  }
  // Blocks that were never cached are taken first by the engine that has freed them.
  if (engines == Engines::two_processes) decided.erase("free_queue_sha256");
  for (const auto& [name, value] : decided.items()) {
    if (expected.contains(name)) {
      EXPECT_EQ(value, expected[name]) << name;
    }
  }
  EXPECT_TRUE(fsck(memory, Moment::quiescent).is_clean());
}

void expect_all(const fs::path& expectations, const fs::path& trace, std::uint32_t block_tokens,
                Engines engines) {
  const auto requests = read_trace(trace, 0);
  ASSERT_TRUE(requests.has_value()) << requests.error().text;
  std::ifstream file(expectations);
  const json read = json::parse(file);
  const json& runs = read.is_array() ? read : read["runs"];
  ASSERT_FALSE(runs.empty());
  for (const json& expected : runs) expect_decisions(*requests, block_tokens, expected, engines);
}

TEST(Traffic, InventedIsDecidedAsByVllm) {
  const fs::path traces = KVHIVE_TRACES_DIR;
  expect_all(traces / "expect.json", traces / "small.jsonl", 64, Engines::one);
}

TEST(Traffic, TwoEnginesThatTakeTurnsDecideAsOne) {
  const fs::path traces = KVHIVE_TRACES_DIR;
  expect_all(traces / "expect.json", traces / "small.jsonl", 64, Engines::two_processes);
}

class RecordedTraffic : public ::testing::TestWithParam<Engines> {};

TEST_P(RecordedTraffic, IsDecidedAsByVllm) {
  const fs::path traces = fs::path(KVHIVE_SHARED_DIR) / "traces";
  if (!fs::exists(traces))
    GTEST_SKIP() << "the recorded traces are not there; invented traffic is tested all the same";
  expect_all(traces / "expect" / "mooncake_conversation.new.json",
             traces / "mooncake_conversation_trace.jsonl.gz", 512, GetParam());
  expect_all(traces / "expect" / "cc64_c16.new.json", traces / "cc64_c16.jsonl.gz", 64, GetParam());
}

INSTANTIATE_TEST_SUITE_P(, RecordedTraffic, ::testing::Values(Engines::one, Engines::two_processes),
                         [](const auto& each) {
                           return each.param == Engines::one ? "OneEngine" : "TwoEngines";
                         });

}  // namespace
}  // namespace kvhive::testing
