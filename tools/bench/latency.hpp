#pragma once
// A histogram of the times of single operations, in memory that processes may share.

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace kvhive::bench {

using Clock = std::chrono::steady_clock;

inline std::uint64_t nanoseconds_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

/// Has 32 buckets per power of two, so a quantile is at most 3 % too high. One process writes, any
/// process may read.
class Latencies {
 public:
  void add(std::uint64_t ns) {
    auto& count = counts_[bucket_of(ns)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void add(const Latencies& other) {
    for (std::size_t i = 0; i < kBuckets; ++i)
      counts_[i].store(counts_[i].load(std::memory_order_relaxed) +
                           other.counts_[i].load(std::memory_order_relaxed),
                       std::memory_order_relaxed);
  }

  void clear() {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

  std::uint64_t count() const {
    std::uint64_t sum = 0;
    for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
    return sum;
  }

  /// The time in microseconds below which this fraction of all operations stayed.
  double quantile_us(double fraction) const {
    const double wanted = fraction * static_cast<double>(count());
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i].load(std::memory_order_relaxed);
      if (seen != 0 && static_cast<double>(seen) >= wanted)
        return static_cast<double>(end_of(i)) / 1e3;
    }
    return 0;
  }

 private:
  static constexpr unsigned kFineBits = 5;
  static constexpr std::size_t kFine = 1 << kFineBits;
  static constexpr std::size_t kBuckets = (64 - kFineBits + 1) * kFine;

  /// The bucket of a time: it follows from the highest bit of `ns` and the five bits after it.
  static std::size_t bucket_of(std::uint64_t ns) {
    if (ns < kFine) return ns;
    const auto shift = static_cast<unsigned>(std::bit_width(ns)) - kFineBits - 1;
    return (shift + 1) * kFine + (ns >> shift) % kFine;
  }
  static std::uint64_t end_of(std::size_t bucket) {
    if (bucket < kFine) return bucket + 1;
    const auto shift = bucket / kFine - 1;
    return (kFine + bucket % kFine + 1) << shift;
  }

  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
};

}  // namespace kvhive::bench
