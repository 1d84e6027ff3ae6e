#include "base/memory/huge_pages.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/loop/signals_blocked.hpp"

namespace kvhive {
namespace {

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kStep = 32 * kHugePage;

/// What small pages take, and how much longer huge ones may take: free memory is fragmented then.
constexpr double kSecondsPerGiB = 0.3, kPatience = 3.5;

constexpr std::size_t kPage = 4096;

/// Where a range's small page is, on whose memory node the kernel then puts the huge one. A policy
/// that spreads pages over nodes goes by their numbers, so the same place in all ranges would be
/// one node for all. With steps of 512 + 11 pages, a prime number, the nodes come by turns.
std::size_t place_of_small_page(std::size_t range) {
  constexpr std::size_t kPages = kHugePage / kPage;
  return range + range / kHugePage * 11 % kPages * kPage;
}

/// False: none is to be had.
bool take_small_page(int fd, std::size_t at) {
  int code;
  do code = posix_fallocate(fd, static_cast<off_t>(at), 1);
  while (code == EINTR);
  return code == 0;
}

/// MADV_COLLAPSE works even if /sys/kernel/mm/transparent_hugepage/shmem_enabled is "never", the
/// default. It needs a mapping, and one small page in each range that becomes a huge page.
/// False: the kernel has no huge page left, or cannot form any.
bool collapse(int fd, std::byte* map, std::size_t from, std::size_t to) {
  for (std::size_t at = from; at + kHugePage <= to; at += kHugePage) {
    const std::size_t page = place_of_small_page(at);
    if (!take_small_page(fd, page)) return false;
    // Linux 6.1 collapses a range of which nothing is mapped, but says EINVAL.
    madvise(map + page, kPage, MADV_POPULATE_READ);
  }
  // It goes through all ranges, and says so if it could not get one of the small pages, which
  // another thread may be moving at that moment. What is left then becomes small pages.
  constexpr int kTries = 2;
  for (int i = 0; i < kTries; ++i) {
    if (madvise(map + from, to - from, MADV_COLLAPSE) == 0) return true;
    if (errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

/// Takes a file's steps one after the other, in any number of threads.
class Taker {
 public:
  Taker(int fd, std::byte* map, std::size_t bytes) : fd_(fd), map_(map), bytes_(bytes) {}

  void take(const GoesOn& goes_on) {
    while (!is_over_) {
      const std::size_t from = next_.fetch_add(kStep);
      if (from >= bytes_) return;
      const std::size_t to = std::min(from + kStep, bytes_);
      if (!is_in_time() || (goes_on && !goes_on()) || !collapse(fd_, map_, from, to))
        is_over_ = true;
      else
        taken_ += to - from;
    }
  }

  std::size_t taken() const { return taken_; }

 private:
  bool is_in_time() const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return passed.count() < kPatience + static_cast<double>(taken_) / double{kGiB} * kSecondsPerGiB;
  }

  const int fd_;
  std::byte* const map_;
  const std::size_t bytes_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next_{0}, taken_{0};
  std::atomic<bool> is_over_{false};
};

}  // namespace

std::size_t clearing_threads(std::size_t bytes) {
  constexpr std::size_t kMost = 16;
  cpu_set_t allowed;
  const bool is_known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  const std::size_t processors = is_known ? std::size_t(CPU_COUNT(&allowed)) : 1;
  return std::clamp<std::size_t>(bytes / kGiB, 1, std::min(processors, kMost));
}

void* aligned_place(std::size_t bytes) {
  if (bytes < kHugePage) return nullptr;
  void* found = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  munmap(found, bytes + kHugePage);
  const auto address = reinterpret_cast<std::uintptr_t>(found);
  return reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
}

std::size_t take_huge_pages(int fd, std::size_t bytes, std::size_t threads, const GoesOn& goes_on) {
  if (goes_on && !goes_on()) return 0;
  void* place = aligned_place(bytes);
  if (place == nullptr || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return 0;
  void* map = mmap(place, bytes, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  if (map == MAP_FAILED) return 0;
  Taker taker(fd, static_cast<std::byte*>(map), bytes);
  {
    std::vector<std::jthread> others;
    try {
      const SignalsBlocked blocked;
      while (others.size() + 1 < threads) others.emplace_back([&taker] { taker.take({}); });
    } catch (const std::system_error&) {  // no more threads are to be had
    }
    taker.take(goes_on);
  }
  munmap(map, bytes);
  return taker.taken();
}

}  // namespace kvhive
