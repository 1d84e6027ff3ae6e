// Schedules the threads of one block. Compiled without sanitizers (CMakeLists.txt).

#include "kernels/simt/kernel_calls.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/block_memory.hpp"
#include "kernels/simt/fiber.hpp"
#include "kernels/simt/launch.hpp"
#include "kernels/simt/sanitizer_hooks.hpp"

namespace simt {

Options options;
constinit thread_local Thread* self = nullptr;

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kStackBytes = 128 << 10;
constexpr int kMaxReported = 8;

enum class State : std::uint8_t { ready, at_barrier, in_warp, done };

const char* to_string(State state) {
  switch (state) {
    case State::ready: return "ready";
    case State::at_barrier: return "at a barrier";
    case State::in_warp: return "in a warp operation";
    case State::done: return "done";
  }
  return "";
}

struct QueuedCopy {
  AsyncCopy copy;
  unsigned group;
};

struct CudaThread : Thread {
  Fiber fiber;
  State state = State::ready;
  unsigned number = 0;
  Line line = {"(start)", 0};  ///< of the thread's last call into the engine
  Vector<QueuedCopy> copies;   ///< cp.async, oldest first
  std::size_t copies_done = 0;
  unsigned open_group = 0;
};

/// The lanes that meet under one mask. There are two sets of words, because a lane may enter the
/// next operation before all lanes have read the words of the last one.
struct Rendezvous {
  std::uint32_t mask = 0;
  std::uint32_t arrived = 0;
  unsigned turn = 0;
  const char* operation = "";
  Line line = {"", 0};
  std::uint32_t lanes[2] = {};
  std::uint64_t words[2][kWarp][WarpWords::kMaxWords] = {};
};

struct Warp {
  static constexpr int kMaxMasks = 8;
  Rendezvous meetings[kMaxMasks];
  int masks = 0;
  std::uint32_t live = 0;
  char memory_order =
      0;  ///< its address is the synchronisation object that sanitizers see for __syncwarp
};

struct Barrier {
  unsigned arrived = 0;
  Line line = {"", 0};
  char memory_order = 0;
};

struct Block {
  Vector<CudaThread> threads;
  Vector<Warp> warps;
  Barrier barrier;
  unsigned live = 0;
  void (*entry)(const void*) = nullptr;
  const void* argument = nullptr;
  Fiber scheduler;
  std::uint64_t random = 1;
  char error[1024] =
      "";  ///< not a std::string: the failing fiber never resumes, so nothing would free it
};

thread_local Block* block = nullptr;
thread_local CudaThread* current = nullptr;
char all_blocks = 0;

struct Counters {
  std::atomic<std::uint64_t> blocks{0}, switches{0}, barriers{0}, warp_operations{0};
} totals;
thread_local Statistics counted{};

/// Reads letters only where the same name may come from two sources: at other addresses.
bool is_same_name(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

std::string at(Line line) { return std::string(line.file) + ":" + std::to_string(line.number); }

std::string name_of(const CudaThread& thread) {
  const Index3 i = thread.thread;
  return "thread (" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) +
         ")";
}

[[noreturn, gnu::format(printf, 2, 3)]] void fail_with(Line line, const char* format, ...) {
  char what[600];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(what, sizeof what, format, values);
  va_end(values);
  const Index3 i = current->thread;
  std::snprintf(block->error, sizeof block->error, "%s\n  thread (%u,%u,%u) at %s:%u", what, i.x,
                i.y, i.z, line.file, line.number);
  release(&all_blocks);
  switch_fiber(current->fiber, block->scheduler);
  std::abort();
}

std::uint64_t next_random() {
  block->random = block->random * 6364136223846793005u + 1442695040888963407u;
  return block->random >> 33;
}

bool happens_early() {
  return options.delivery == Delivery::early ||
         (options.delivery == Delivery::random && next_random() % 2 == 0);
}

/// The next ready thread after `number` in the chosen order.
CudaThread* next_ready(unsigned number) {
  const auto n = static_cast<unsigned>(block->threads.size());
  if (options.order == Order::random) number = static_cast<unsigned>(next_random() % n);
  for (unsigned i = 0; i < n; ++i) {
    // By hand: a remainder at each switch shows in the tests' time.
    if (options.order == Order::reverse)
      number = number == 0 ? n - 1 : number - 1;
    else if (++number == n)
      number = 0;
    if (block->threads[number].state == State::ready) return &block->threads[number];
  }
  return nullptr;
}

void run(CudaThread& thread) {
  ++counted.switches;
  CudaThread* from = current;
  current = &thread;
  self = &thread;
  switch_fiber(from ? from->fiber : block->scheduler, thread.fiber);
}

/// The current thread waits or is done: another one goes on. Where none is ready, the scheduler's
/// fiber ends the block.
void yield() {
  CudaThread* next = next_ready(current->number);
  if (next == current) return;
  if (next != nullptr) return run(*next);
  switch_fiber(current->fiber, block->scheduler);
}

void wake(Rendezvous& meeting, unsigned warp) {
  if (meeting.arrived == 0 || meeting.arrived != (meeting.mask & block->warps[warp].live)) return;
  meeting.lanes[meeting.turn] = meeting.arrived;
  for (std::uint32_t rest = meeting.arrived; rest != 0; rest &= rest - 1)
    block->threads[warp * kWarp + std::countr_zero(rest)].state = State::ready;
  meeting.arrived = 0;
  meeting.turn ^= 1;
}

void thread_main() {
  arrived_in_new_fiber();
  CudaThread& me = *current;
  block->entry(block->argument);
  if (me.copies_done < me.copies.size())
    fail("cp.async: the thread exits without having waited for it", me.line);
  if (block->barrier.arrived != 0)
    fail("divergent barrier: a thread exits while others wait at __syncthreads",
         block->barrier.line);
  release(&all_blocks);
  me.state = State::done;
  --block->live;
  Warp& warp = block->warps[me.number / kWarp];
  warp.live &= ~(1u << me.lane);
  for (int i = 0; i < warp.masks; ++i) wake(warp.meetings[i], me.number / kWarp);
  yield();
  std::abort();
}

std::string describe_waiting_threads() {
  std::string text = "threads wait for ever:";
  int reported = 0;
  const CudaThread* last = nullptr;
  for (const CudaThread& thread : block->threads) {
    if (thread.state == State::done) continue;
    const bool is_new =
        last == nullptr || thread.line.number != last->line.number || thread.state != last->state;
    if (is_new && reported++ < kMaxReported)
      text += "\n  from " + name_of(thread) + " on: " + to_string(thread.state) + ", " +
              at(thread.line);
    last = &thread;
  }
  return text;
}

/// One OS thread and the memory in which it runs blocks.
class Worker {
 public:
  void run_block(Index3 index, Dim3 grid, Dim3 dim, std::size_t shared_bytes,
                 void (*entry)(const void*), const void* argument) {
    if (under_tsan()) {  // it would take the last block's frames for this one's
      stacks_.clear();
      shared_.reset();
    }
    if (!shared_ || shared_->bytes() != shared_bytes)
      shared_ = std::make_unique<SharedMemory>(shared_bytes);
    shared_->poison();

    arena().clear();
    block = new (arena().allocate(sizeof(Block))) Block;
    block->entry = entry;
    block->argument = argument;
    block->random =
        options.seed * 0x9e3779b97f4a7c15u + index.x * 7919 + index.y * 104729 + index.z;
    make_threads(index, grid, dim);
    adopt_thread(block->scheduler);

    current = nullptr;
    run(*next_ready(options.order == Order::reverse ? 0 : block->live - 1));
    const std::string error = error_at_end();
    for (CudaThread& thread : block->threads) retire(thread.fiber);
    current = nullptr;
    self = nullptr;
    count();
    if (!error.empty())
      throw Error("block (" + std::to_string(index.x) + "," + std::to_string(index.y) + "," +
                  std::to_string(index.z) + "): " + error);
  }

 private:
  void make_threads(Index3 index, Dim3 grid, Dim3 dim) {
    const unsigned n = dim.x * dim.y * dim.z;
    while (stacks_.size() < n) stacks_.emplace_back(kStackBytes);
    block->live = n;
    block->threads.resize(n);
    block->warps.resize((n + kWarp - 1) / kWarp);
    for (unsigned i = 0; i < n; ++i) {
      CudaThread& thread = block->threads[i];
      thread.number = i;
      thread.lane = i % kWarp;
      thread.thread = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
      thread.block = index;
      thread.block_dim = dim;
      thread.grid_dim = grid;
      thread.shared = shared_->data();
      block->warps[i / kWarp].live |= 1u << thread.lane;
      prepare(thread.fiber, stacks_[i], thread_main);
    }
  }

  /// The error of the block that has ended; empty if there is none.
  std::string error_at_end() const {
    if (block->error[0] != 0) {
      acquire(&all_blocks);
      return block->error;
    }
    const bool all_done = std::all_of(block->threads.begin(), block->threads.end(),
                                      [](const auto& t) { return t.state == State::done; });
    if (!all_done) return describe_waiting_threads();
    if (!shared_->is_tail_intact())
      return "shared memory: written past its " + std::to_string(shared_->bytes()) + " bytes";
    return "";
  }

  static void count() {
    ++totals.blocks;
    totals.switches += counted.switches;
    totals.barriers += counted.barriers;
    totals.warp_operations += counted.warp_operations;
    counted = {};
  }

  std::vector<FiberStack> stacks_;
  std::unique_ptr<SharedMemory> shared_;
};

/// The order in which blocks start.
std::vector<std::uint64_t> block_order(std::uint64_t blocks) {
  std::vector<std::uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (options.order == Order::reverse) std::reverse(order.begin(), order.end());
  if (options.order == Order::random)
    for (std::uint64_t i = blocks, r = options.seed; i > 1; --i) {
      r = r * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(r >> 33) % i]);
    }
  return order;
}

void check_configuration(Dim3 grid, Dim3 dim, std::size_t shared_bytes) {
  const std::uint64_t threads = std::uint64_t{dim.x} * dim.y * dim.z;
  const bool is_legal = threads > 0 && threads <= kMaxThreads && dim.z <= 64 && grid.x > 0 &&
                        grid.x <= 0x7fffffff && grid.y > 0 && grid.y <= 65535 && grid.z > 0 &&
                        grid.z <= 65535 && shared_bytes <= options.max_shared_bytes;
  if (!is_legal)
    throw Error("invalid launch: grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) +
                "x" + std::to_string(grid.z) + ", " + std::to_string(threads) + " threads, " +
                std::to_string(shared_bytes) + " bytes of shared memory");
}

}  // namespace

Statistics statistics() {
  return {totals.blocks, totals.switches, totals.barriers, totals.warp_operations};
}

void fail(const char* what, Line line) { fail_with(line, "%s", what); }

void expect_aligned(const void* address, std::size_t alignment, const char* what, Line line) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0)
    fail_with(line, "%s: misaligned, needs %zu bytes", what, alignment);
}

void barrier(Line line) {
  CudaThread& me = *current;
  me.line = line;
  Barrier& b = block->barrier;
  const auto all = static_cast<unsigned>(block->threads.size());
  if (block->live != all) fail("divergent barrier: some threads of the block have exited", line);
  if (b.arrived == 0)
    b.line = line;
  else if (b.line.number != line.number || !is_same_name(b.line.file, line.file))
    fail_with(line, "divergent barrier: others wait at %s:%u", b.line.file, b.line.number);
  release(&b.memory_order);
  me.state = State::at_barrier;
  if (++b.arrived == all) {
    b.arrived = 0;
    ++counted.barriers;
    for (CudaThread& thread : block->threads)
      if (thread.state == State::at_barrier) thread.state = State::ready;
  }
  if (me.state != State::ready) yield();
  acquire(&b.memory_order);
}

WarpWords warp_exchange(std::uint32_t mask, const char* operation, const std::uint64_t* words,
                        int count, MemoryOrder order, Line line) {
  CudaThread& me = *current;
  const unsigned number = me.number / kWarp;
  Warp& warp = block->warps[number];
  me.line = line;
  ++counted.warp_operations;
  if ((mask >> me.lane & 1) == 0) fail("bad mask: the calling lane is not in it", line);
  int i = 0;
  while (i < warp.masks && warp.meetings[i].mask != mask) ++i;
  if (i == warp.masks) {
    if (i == Warp::kMaxMasks) fail("the emulator keeps 8 masks per warp", line);
    warp.meetings[i].mask = mask;
    ++warp.masks;
  }
  Rendezvous& meeting = warp.meetings[i];
  if (meeting.arrived == 0) {
    meeting.operation = operation;
    meeting.line = line;
  } else if (!is_same_name(meeting.operation, operation)) {
    fail_with(line, "%s meets %s at %s:%u", operation, meeting.operation, meeting.line.file,
              meeting.line.number);
  }
  const unsigned turn = meeting.turn;
  for (int w = 0; w < count; ++w) meeting.words[turn][me.lane][w] = words[w];
  meeting.arrived |= 1u << me.lane;
  me.state = State::in_warp;
  if (order == MemoryOrder::ordered) release(&warp.memory_order);
  wake(meeting, number);
  if (me.state != State::ready) yield();
  if (order == MemoryOrder::ordered) acquire(&warp.memory_order);
  return {meeting.words[turn], meeting.lanes[turn]};
}

bool is_delivered_early(const AsyncCopy& copy) {
  if (happens_early()) return true;
  current->copies.push_back({copy, current->open_group});
  return false;
}

void async_commit() { ++current->open_group; }

bool next_async_copy(unsigned pending_groups, AsyncCopy* copy) {
  CudaThread& me = *current;
  if (me.copies_done < me.copies.size() &&
      me.copies[me.copies_done].group + pending_groups < me.open_group) {
    *copy = me.copies[me.copies_done++].copy;
    return true;
  }
  if (me.copies_done == me.copies.size()) {
    me.copies.clear();
    me.copies_done = 0;
  }
  return false;
}

void run_grid(void (*entry)(const void*), const void* argument, Dim3 grid, Dim3 dim,
              std::size_t shared_bytes) {
  check_configuration(grid, dim, shared_bytes);
  const std::vector<std::uint64_t> order = block_order(std::uint64_t{grid.x} * grid.y * grid.z);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  const auto work = [&] {
    static thread_local Worker worker;
    try {
      for (std::size_t i; !failed && (i = next++) < order.size();) {
        const std::uint64_t b = order[i];
        worker.run_block(
            {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
             static_cast<unsigned>(b / grid.x / grid.y)},
            grid, dim, shared_bytes, entry, argument);
      }
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  if (options.workers <= 1) {
    work();
  } else {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < options.workers; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
  }
  acquire(&all_blocks);  // the host reads the results; blocks stay unordered among themselves
  if (error) std::rethrow_exception(error);
}

}  // namespace simt
