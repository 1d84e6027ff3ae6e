#include "tools/replay/replay.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>

#include "base/stop_watch.hpp"
#include "pool/block_pool.hpp"
#include "tools/replay/sha256.hpp"

namespace kvhive {
namespace {

/// Processor time of this thread. Not wall time: no pool operation waits, but other processes may
/// use the processor meanwhile.
struct CpuClock {
  static std::chrono::nanoseconds now() { return thread_cpu_time(); }
};

/// Stands for a block's tokens where the trace names contents: the id itself, as two tokens.
constexpr std::uint32_t kIdTokens = 2;

void append_id(std::vector<TokenId>& tokens, std::uint64_t low, std::uint64_t high) {
  tokens.push_back(static_cast<TokenId>(low));
  tokens.push_back(static_cast<TokenId>(high));
}

/// The tokens that a content id stands for, made by a fixed rule: the first two differ between any
/// two ids, the others are filler.
void append_real_tokens(std::vector<TokenId>& tokens, std::uint64_t id, std::uint32_t count) {
  for (std::uint64_t k = 0; k < count; ++k)
    tokens.push_back(static_cast<TokenId>(k == 0   ? id % 50000
                                          : k == 1 ? id / 50000
                                                   : (id * 31 + k) % 150000));
}

/// A request on its way through the pool. Lengths are counted in half blocks, so that a block can
/// be half full.
struct Running {
  std::uint32_t number = 0;
  std::uint64_t half_blocks = 0;
  std::uint64_t output_blocks = 0;
  std::vector<TokenId> tokens;
  std::vector<Hash128> chain;
  std::vector<BlockId> blocks;
  Prefix published;
};

class Replayer {
 public:
  Replayer(const PoolMemory& memory, ProcessSlot slot, const ReplayOptions& options)
      : options_(options), pool_(memory, slot), hasher_(pool_.hasher()) {}

  void add(const TraceRequest& request) {
    Running run = prepare(request);
    const std::size_t full = full_blocks(request), total = full + has_tail(request);
    result_.full_blocks += full;
    const auto start = CpuClock::now();
    hasher_.extend(run.chain, DomainId{0}, run.tokens, pool_.tokens_per_block());
    const auto hits = admit(run, full, total);
    busy_ += CpuClock::now() - start;
    hits_.push_back(hits);
    result_.hit_blocks += hits;
    ++result_.requests;
  }

  void release_all() {
    const auto start = CpuClock::now();
    while (!running_.empty()) end_oldest();
    busy_ += CpuClock::now() - start;
  }

  /// The figures alone.
  ReplayFigures figures() const {
    ReplayFigures figures = result_;
    figures.evictions = pool_.counters()["evicted_blocks"].load();
    figures.seconds = std::chrono::duration<double>(busy_).count();
    return figures;
  }

  ReplayResult finish() {
    release_all();
    ReplayResult result{figures(), {}, {}, {}};
    Sha256 hits;
    hits.add(hits_);
    result.hits_sha256 = hits.finish();
    result.block_ids_sha256 = block_ids_.finish();
    std::vector<std::uint32_t> queue;
    for (const BlockId block : pool_.free_queue(Tier::device)) queue.push_back(block.value);
    Sha256 free_queue;
    free_queue.add(queue);
    result.free_queue_sha256 = free_queue.finish();
    return result;
  }

 private:
  bool is_expanded() const { return options_.expand_to != 0; }
  std::uint64_t block_tokens() const {
    return is_expanded() ? options_.expand_to : options_.block_tokens;
  }

  std::size_t full_blocks(const TraceRequest& request) const {
    return is_expanded() ? request.input_tokens / block_tokens()
                         : request.full_blocks(block_tokens());
  }

  bool has_tail(const TraceRequest& request) const {
    if (!is_expanded()) return request.has_tail(block_tokens());
    return request.input_tokens % block_tokens() != 0 || full_blocks(request) == 0;
  }

  Running prepare(const TraceRequest& request) {
    Running run;
    run.number = static_cast<std::uint32_t>(result_.requests);
    const std::size_t full = full_blocks(request);
    run.half_blocks = 2 * full + has_tail(request);
    if (is_expanded()) {
      for (const std::uint64_t id : request.content)
        append_real_tokens(run.tokens, id, options_.block_tokens);
      run.tokens.resize(full * options_.expand_to);
    } else {
      for (std::size_t i = 0; i < full; ++i)
        append_id(run.tokens, request.content[i], request.content[i] >> 32);
    }
    if (options_.mode.decode == ReplayMode::Decode::no) return run;
    run.output_blocks = (request.output_tokens + block_tokens() - 1) / block_tokens();
    constexpr std::uint64_t kOutput = 0x40000000;  // ids of outputs: they occur in no prompt
    for (std::uint64_t k = 0; k <= run.output_blocks; ++k)
      append_id(run.tokens, k, kOutput | run.number);
    return run;
  }

  /// \return blocks hit
  std::uint32_t admit(Running& run, std::size_t full, std::size_t total) {
    if (total > pool_.capacity(Tier::device)) return reject();
    while (running_.size() >= options_.mode.in_flight) end_oldest();
    // The last token is always computed anew, so a prompt that is cached to the end loses its last
    // block.
    const std::size_t limit = std::min<std::size_t>(full, (run.half_blocks - 1) / 2);
    while (true) {
      const std::span chain(run.chain);
      const PrefixHit hit =
          pool_.match(Tier::device, BlockPool::root({}), chain.first(limit), tokens(run, 0, limit));
      auto fresh = pool_.allocate(Tier::device, total - hit.blocks.size());
      if (!fresh) {
        pool_.cancel(hit);
        if (running_.empty()) return reject();
        end_oldest();
        continue;
      }
      run.blocks = hit.blocks;
      run.blocks.insert(run.blocks.end(), fresh->begin(), fresh->end());
      run.published = hit.end;
      publish(run, full);
      const auto hits = static_cast<std::uint32_t>(hit.blocks.size());
      running_.push_back(std::move(run));
      return hits;
    }
  }

  std::uint32_t reject() {
    ++result_.rejected;
    return 0;
  }

  void end_oldest() {
    Running run = std::move(running_.front());
    running_.pop_front();
    for (std::uint64_t i = 0; i < run.output_blocks; ++i) {
      if (!grow(run)) {
        ++result_.truncated;
        break;
      }
    }
    std::vector<std::uint32_t> words = {run.number, static_cast<std::uint32_t>(run.blocks.size())};
    for (const BlockId block : run.blocks) words.push_back(block.value);
    block_ids_.add(words);
    pool_.release(run.blocks);
  }

  /// Generates one more block of output.
  bool grow(Running& run) {
    const std::size_t total = (run.half_blocks + 3) / 2;
    if (total > run.blocks.size()) {
      auto fresh = pool_.allocate(Tier::device, total - run.blocks.size());
      if (!fresh) return false;
      run.blocks.insert(run.blocks.end(), fresh->begin(), fresh->end());
    }
    run.half_blocks += 2;
    publish(run, run.half_blocks / 2);
    return true;
  }

  void publish(Running& run, std::size_t up_to) {
    const std::size_t from = run.published.depth;
    run.published =
        pool_.publish(run.published, std::span(run.blocks).subspan(from, up_to - from),
                      std::span(run.chain).subspan(from, up_to - from), tokens(run, from, up_to));
  }

  std::span<const TokenId> tokens(const Running& run, std::size_t from, std::size_t to) const {
    const std::size_t s = pool_.tokens_per_block();
    return std::span(run.tokens).subspan(from * s, (to - from) * s);
  }

  const ReplayOptions& options_;
  BlockPool pool_;
  BlockHasher hasher_;
  std::deque<Running> running_;
  ReplayFigures result_;
  std::vector<std::uint32_t> hits_;
  Sha256 block_ids_;
  std::chrono::nanoseconds busy_{};
};

/// What a replaying process reports to its parent.
struct Together {
  std::atomic<std::uint32_t> ready;
  std::array<ReplayFigures, kMaxProcesses> figures;
};

/// Forks processes, each with a slot of its own, which begin at the same moment.
Expected<ReplayResult> replay_together(const PoolMemory& memory,
                                       const std::vector<TraceRequest>& trace,
                                       const ReplayOptions& options) {
  auto fd = create_memory("kvhive-replay", sizeof(Together));
  if (!fd) return forward_error(fd);
  auto map = MappedMemory::map(fd->get(), sizeof(Together), Access::read_write, "kvhive-replay");
  if (!map) return forward_error(map);
  auto& together = *new (map->data()) Together{};

  const std::uint32_t processes = options.processes;
  std::vector<pid_t> children;
  for (std::uint32_t k = 0; k < processes; ++k) {
    const pid_t pid = fork();
    if (pid < 0) return os_failure("fork");
    children.push_back(pid);
    if (pid != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Replayer replayer(memory, ProcessSlot{k}, options);
    for (++together.ready; together.ready.load() < processes;) sched_yield();
    for (std::size_t i = k; i < trace.size(); i += processes) replayer.add(trace[i]);
    replayer.release_all();
    together.figures[k] = replayer.figures();
    _exit(0);
  }
  bool have_ended_well = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    have_ended_well &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!have_ended_well) return failure(Errc::peer_died, "a replaying process died");

  ReplayResult sum;
  sum.processes = processes;
  for (const ReplayFigures& one : together.figures) {
    sum.requests += one.requests;
    sum.rejected += one.rejected;
    sum.full_blocks += one.full_blocks;
    sum.hit_blocks += one.hit_blocks;
    sum.evictions += one.evictions;
    sum.truncated += one.truncated;
    sum.seconds += one.seconds;
  }
  return sum;
}

}  // namespace

Expected<ReplayMode> ReplayMode::parse(const std::string& text) {
  if (text == "seq") return ReplayMode{};
  const bool is_decode = text.rfind("dec", 0) == 0;
  const std::size_t prefix = is_decode ? 3 : text.rfind("fifo", 0) == 0 ? 4 : 0;
  ReplayMode mode{0, is_decode ? Decode::yes : Decode::no};
  const auto [end, status] =
      std::from_chars(text.data() + prefix, text.data() + text.size(), mode.in_flight);
  if (prefix == 0 || status != std::errc{} || end != text.data() + text.size() ||
      mode.in_flight == 0)
    return failure(
        Errc::bad_argument,
        "--mode '" + text + "' is unknown; use seq, fifoN or decN, N requests in flight");
  return mode;
}

Expected<ReplayResult> replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options,
                              const std::function<void(std::size_t)>& progress) {
  PoolGeometry geometry{};
  geometry.device_blocks = options.blocks + 1;
  geometry.eviction_policy = options.policy;
  geometry.models[0].tokens_per_block = options.expand_to != 0 ? options.expand_to : kIdTokens;
  auto memory = PoolMemory::create_private(geometry);
  if (!memory) return forward_error(memory);
  if (options.processes > 1) return replay_together(*memory, trace, options);
  Replayer replayer(*memory, ProcessSlot{0}, options);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    replayer.add(trace[i]);
    if (i % 64 == 0) progress(i);
  }
  progress(trace.size());
  return replayer.finish();
}

}  // namespace kvhive
