// Compares kvhive with other stores: the time to pin a block that another process stored. Also
// compares copying blocks out of the pool with the fastest copy that this machine can do. One run,
// interleaved rounds, medians of the ratios within a round.

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/block_copy.hpp"
#include "tools/bench/forked.hpp"
#include "tools/bench/paired.hpp"
#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 15;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr KvLayout k32KiB{.layers = 8, .kv_heads = 4, .head_size = 16, .block_size = 16};
constexpr KvLayout k2MiB{.layers = 32, .kv_heads = 8, .head_size = 128, .block_size = 16};

/// Makes a data set, with the names that `pool` computes for its blocks.
DataSet make_data(const SharedPool& pool, std::size_t bytes) {
  DataSet data;
  data.block_bytes = pool.geometry().models[0].kv.block_bytes();
  const PoolMemory memory = pool.attach();
  data.prompts = make_prompts(memory.hasher(), bytes / data.block_bytes / kBatch, kBatch);
  return data;
}

std::uint32_t blocks_needed(const KvLayout& kv, std::size_t bytes) {
  return static_cast<std::uint32_t>(bytes / kv.block_bytes()) + 1;
}

// -- pin ------------------------------------------------------------------------------------------

/// The times of one peer, one entry per round.
struct Timings {
  std::vector<double> pin_us, both_us;  ///< per block: pin alone, and pin and unpin together
};

struct Contender {
  std::string directory;
  std::unique_ptr<Peer> (*make)(const fs::path& directory, const DataSet& data);
  std::size_t prompts_a_round;  ///< fewer for slow peers
  double goal;                  ///< kvhive's pin should be this many times as fast
};

/// The value that pin must return. It also reads the whole prompt, so that the prompt is in the
/// CPU's cache: an engine has just tokenised and hashed a prompt that it looks for.
std::uint64_t expected_sum(const Prompt& prompt) {
  KV_CHECK(std::find(prompt.tokens.begin(), prompt.tokens.end(), -1) == prompt.tokens.end());
  std::uint64_t sum = 0;
  for (const Hash128& name : prompt.chain) sum += name.low;
  return sum;
}

/// Runs one round and notes its median batch. With the median, a batch that was interrupted by
/// another process does not count.
void run_round(Peer& peer, const DataSet& data, std::span<const std::size_t> order,
               Timings& timings) {
  std::vector<double> pin, both;
  for (const std::size_t i : order) {
    const Prompt& prompt = data.prompts[i];
    const std::uint64_t expected = expected_sum(prompt);
    std::uint64_t sum = 0;
    pin.push_back(seconds_of([&] { sum = peer.pin(prompt); }));
    both.push_back(pin.back() + seconds_of([&] { peer.unpin(prompt); }));
    KV_CHECK(sum == expected, peer.name());
  }
  timings.pin_us.push_back(median(std::move(pin)) * 1e6 / kBatch);
  timings.both_us.push_back(median(std::move(both)) * 1e6 / kBatch);
}

double median_ratio(const std::vector<double>& theirs, const std::vector<double>& ours) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] / ours[i]);
  return median(ratios);
}

void fill_and_touch(Peer& peer, const DataSet& data, std::span<const std::size_t> order) {
  Forked writer([&] { peer.store(data); });
  KV_CHECK(writer.collect(), peer.name());
  peer.open();
  Timings unused;
  run_round(peer, data, order, unused);
}

/// Compares one peer after the other, each alternately with kvhive, so that at most two copies of
/// the data exist at the same time.
void compare_pins(const fs::path& directory, std::size_t bytes) {
  const SharedPool pool(blocks_needed(k32KiB, bytes), k32KiB);
  const DataSet data = make_data(pool, bytes);
  std::vector<std::size_t> order(data.prompts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kvhive = make_kvhive_peer(pool);
  fill_and_touch(*kvhive, data, order);

  std::printf(
      "pin of %zu KiB blocks another process stored, %zu at a time, %zu blocks (%.1f GiB); us a "
      "block\n",
      data.block_bytes >> 10, kBatch, data.blocks(), double(data.bytes()) / kGiB);
  std::printf("  %-26s %9s %9s %9s %9s %11s %9s\n", "", "pin", "kvhive", "ratio", "goal",
              "and let go", "ratio");
  const std::size_t all = order.size();
  const Contender contenders[] = {{"lmdb", make_lmdb_peer, all, 10},
                                  {"boost", make_boost_map_peer, all, 5},
                                  {"files", make_file_peer, 128, 100},
                                  {"memcached", make_memcached_peer, 64, 150},
                                  {"redis", make_redis_peer, 64, 150}};
  std::mt19937 random(11);
  for (const Contender& contender : contenders) {
    const fs::path own = directory / contender.directory;
    fs::create_directory(own);
    auto peer = contender.make(own, data);
    fill_and_touch(*peer, data, order);
    Timings ours, theirs;
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      run_round(*kvhive, data, order, ours);
      run_round(*peer, data, std::span(order).first(std::min(all, contender.prompts_a_round)),
                theirs);
    }
    std::printf("  %-26s %9.3f %9.3f %9.1f %9.0f %11.3f %9.1f\n", peer->name().c_str(),
                median(theirs.pin_us), median(ours.pin_us),
                median_ratio(theirs.pin_us, ours.pin_us), contender.goal, median(theirs.both_us),
                median_ratio(theirs.both_us, ours.both_us));
    peer.reset();
    fs::remove_all(own);
  }
  std::printf("\n");
}

// -- copy out -------------------------------------------------------------------------------------

/// Private memory, in huge pages if the kernel has them.
class PrivateBytes {
 public:
  explicit PrivateBytes(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(memory != MAP_FAILED);
    madvise(memory, bytes, MADV_HUGEPAGE);
    std::memset(memory, 1, bytes);
    data_ = static_cast<std::byte*>(memory);
  }
  PrivateBytes(const PrivateBytes&) = delete;
  PrivateBytes& operator=(const PrivateBytes&) = delete;
  ~PrivateBytes() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

struct Copy {
  const char* name;
  std::function<void(const Prompt& prompt, std::size_t index)> run;
  std::vector<double> seconds;  ///< one entry per round
};

void compare_copies(int threads) {
  omp_set_num_threads(threads);
  const SharedPool shared(blocks_needed(k2MiB, kGiB), k2MiB);
  const DataSet data = make_data(shared, kGiB);
  Forked writer([&] { make_kvhive_peer(shared)->store(data); });
  KV_CHECK(writer.collect());
  const PoolMemory memory = shared.attach();
  sign_in(memory, ProcessSlot{1}, 1);
  BlockPool pool(memory, ProcessSlot{1});

  const PrivateBytes source(data.bytes()), destination(kBatch * data.block_bytes);
  std::vector<BlockPair> pairs(kBatch);
  const auto copy_blocks = [&](const std::byte* from) {
    block_copy_cpu(whole_blocks(from, destination.data(), data.block_bytes, pairs));
  };
  const auto private_block = [&](std::size_t prompt, std::size_t i) {
    return source.data() + (prompt * kBatch + i) * data.block_bytes;
  };
  std::vector<Copy> copies;
  copies.push_back({"kvhive: find, pin, copy out",
                    [&](const Prompt& prompt, std::size_t) {
                      const PrefixHit hit = prompt.match(pool, kBatch);
                      KV_CHECK(hit.blocks.size() == kBatch);
                      for (std::uint32_t i = 0; i < kBatch; ++i)
                        pairs[i] = {hit.blocks[i].value, i};
                      copy_blocks(memory.arena(Tier::device));
                      pool.release(hit.blocks);
                    },
                    {}});
  copies.push_back({"private, streaming copy",
                    [&](const Prompt&, std::size_t index) {
                      for (std::uint32_t i = 0; i < kBatch; ++i) pairs[i] = {i, i};
                      copy_blocks(private_block(index, 0));
                    },
                    {}});
  copies.push_back({"private, memcpy a block",
                    [&](const Prompt&, std::size_t index) {
#pragma omp parallel for schedule(static)
                      for (std::size_t i = 0; i < kBatch; ++i)
                        std::memcpy(destination.data() + i * data.block_bytes,
                                    private_block(index, i), data.block_bytes);
                    },
                    {}});
  copies.push_back({"private, memcpy of all",
                    [&](const Prompt&, std::size_t index) {
                      const std::size_t share = kBatch * data.block_bytes / std::size_t(threads);
#pragma omp parallel for schedule(static)
                      for (int t = 0; t < threads; ++t)
                        std::memcpy(destination.data() + std::size_t(t) * share,
                                    private_block(index, 0) + std::size_t(t) * share, share);
                    },
                    {}});

  for (int round = -1; round < kRounds; ++round)  // the first touches everything once
    for (Copy& copy : copies) {
      const double seconds = seconds_of([&] {
        for (std::size_t i = 0; i < data.prompts.size(); ++i) copy.run(data.prompts[i], i);
      });
      if (round >= 0) copy.seconds.push_back(seconds);
    }
  std::vector<double> of_best;
  for (std::size_t round = 0; round < kRounds; ++round) {
    double best = copies[1].seconds[round];
    for (const Copy& copy : std::span(copies).subspan(1))
      best = std::min(best, copy.seconds[round]);
    of_best.push_back(best / copies[0].seconds[round]);
  }
  std::printf("copy of %zu MiB blocks, %zu at a time, %d thread(s); GB/s\n", data.block_bytes >> 20,
              kBatch, threads);
  for (const Copy& copy : copies)
    std::printf("  %-28s %6.1f\n", copy.name,
                static_cast<double>(data.bytes()) / median(copy.seconds) / 1e9);
  std::printf("  kvhive over the best private copy of each round: %.2f (goal 0.90)\n\n",
              median(of_best));
}

/// The default size of the data: a third of the available memory, because two copies must fit, from
/// 1 to 8 GiB. The larger it is, the more it is like a real cache.
std::size_t default_bytes() {
  const auto there_is = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::clamp(there_is / 3 / kGiB, std::size_t{1}, std::size_t{8}) * kGiB;
}

}  // namespace
}  // namespace kvhive::bench

/// bench_peers [pins [GIB] | copies]
///
/// A child process does the work and the parent only cleans up: even if the child dies, its servers
/// die with it and the parent removes the directory.
int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  const std::size_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) * kvhive::bench::kGiB
                                     : kvhive::bench::default_bytes();
  char directory[] = "/dev/shm/kvhive-peers-XXXXXX";
  KV_CHECK(mkdtemp(directory) != nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
  bool is_done = false;
  {
    kvhive::bench::Forked worker([&] {
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
      setvbuf(stdout, nullptr, _IOLBF, 0);
      if (part != "copies") kvhive::bench::compare_pins(directory, bytes);
      if (part == "pins") return;
      for (const int threads : {1, omp_get_num_procs()}) kvhive::bench::compare_copies(threads);
    });
    is_done = worker.collect();
  }
  std::filesystem::remove_all(directory);
  return is_done ? 0 : 1;
}
