#include "config/machine/process_limits.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_size.hpp"

namespace kvhive {
namespace {

std::uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return ProcessLimits::kNone;
  return limit.rlim_cur;
}

void raise_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
}

tl::unexpected<Error> too_low(const std::string& limit, const std::string& value,
                              const std::string& need, const std::string& remedy) {
  return failure(Errc::os_error, limit + " is " + value + ", " + need + "; raise it" + remedy);
}

}  // namespace

ProcessLimits take_process_limits() {
  raise_limit(RLIMIT_NOFILE);  // a client takes eight descriptors
  raise_limit(RLIMIT_MEMLOCK);
  return {soft_limit(RLIMIT_NOFILE), soft_limit(RLIMIT_AS), soft_limit(RLIMIT_FSIZE),
          soft_limit(RLIMIT_MEMLOCK)};
}

void offer_to_oom_killer() {
  constexpr int kLikelier = 300;  // of 1000
  const std::string path = "/proc/self/oom_score_adj";
  int now = 0;
  if (std::ifstream(path) >> now && now < kLikelier) std::ofstream(path) << kLikelier;
}

void forbid_core_dumps() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  prctl(PR_SET_DUMPABLE, 0);
#endif
}

Expected<void> check_descriptors(const ProcessLimits& limits, std::uint32_t engines) {
  // The pool's five; the keeper's loop, signals, socket, reserve and reports; what is open while a
  // process is started or a client welcomed; a socket and a pidfd for each process; one client's.
  const std::uint64_t needed = 38 + 2 * (std::uint64_t{engines} + 1) + 8;
  if (limits.descriptors >= needed) return {};
  return too_low(
      "the limit of file descriptors (ulimit -n)", std::to_string(limits.descriptors),
      "a daemon with engines: " + std::to_string(engines) + " needs " + std::to_string(needed),
      ", or start fewer engines");
}

Expected<void> check_bytes(const ProcessLimits& limits, std::size_t mapped,
                           std::size_t largest_object) {
  const std::string remedy =
      " to unlimited, or lower kv-cache-memory-bytes, num-gpu-blocks-override or swap-space";
  if (mapped > limits.address_space)
    return too_low("the limit of address space (ulimit -v)", format_bytes(limits.address_space),
                   "an engine maps " + format_bytes(mapped) + " of pool and weights", remedy);
  return check_file_size(limits, "the pool's largest object", largest_object, remedy);
}

Expected<void> check_file_size(const ProcessLimits& limits, const std::string& what,
                               std::size_t bytes, const std::string& remedy) {
  if (bytes <= limits.file_size) return {};
  return too_low("the limit of file sizes (ulimit -f)", format_bytes(limits.file_size),
                 what + " has " + format_bytes(bytes), remedy);
}

Expected<void> check_locked_bytes(const ProcessLimits& limits, std::size_t bytes) {
  if (bytes <= limits.locked_memory) return {};
  return too_low(
      "lock-metadata: the limit of locked memory (ulimit -l)", format_bytes(limits.locked_memory),
      "the pool's metadata has " + format_bytes(bytes),
      ", start with CAP_SYS_RESOURCE (root usually has it), or leave --lock-metadata out");
}

void keep_one_heap() {
  if (soft_limit(RLIMIT_AS) != ProcessLimits::kNone) mallopt(M_ARENA_MAX, 1);
}

std::size_t descriptors_left(int newest) {
  const std::uint64_t limit = soft_limit(RLIMIT_NOFILE);
  const std::uint64_t open = static_cast<std::uint64_t>(newest) + 1;
  return limit > open ? limit - open : 0;
}

void take_descriptor_table() {
  constexpr std::uint64_t kRows = 1 << 16;
  const auto last = static_cast<int>(std::min(soft_limit(RLIMIT_NOFILE), kRows)) - 1;
  const int any = open("/", O_PATH | O_CLOEXEC);
  const int highest = fcntl(any, F_DUPFD_CLOEXEC, last);
  if (highest >= 0) close(highest);
  if (any >= 0) close(any);
}

Expected<void> try_threads(std::size_t count) {
  std::promise<void> all_are_there;
  const std::shared_future<void> end = all_are_there.get_future();
  std::vector<std::thread> threads;
  try {
    while (threads.size() < count) threads.emplace_back([end] { end.wait(); });
  } catch (const std::exception&) {  // the system grants no thread, or no memory for it
  }
  const std::size_t granted = threads.size();
  all_are_there.set_value();
  for (std::thread& thread : threads) thread.join();
  if (granted == count) return {};
  return failure(Errc::os_error,
                 "an engine needs " + std::to_string(count) + " threads, the system grants " +
                     std::to_string(granted) +
                     "; raise the limit (ulimit -u, ulimit -v, the cgroup's pids.max), or start "
                     "fewer engines or --threads");
}

}  // namespace kvhive
