#include "tools/cli/findings.hpp"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <fmt/format.h>

#include <cstdio>

#include "base/byte_size.hpp"
#include "base/memory/memory_object.hpp"
#include "config/machine/machine_memory.hpp"
#include "config/machine/process_limits.hpp"
#include "config/machine/processor_quota.hpp"
#include "device/device.hpp"
#include "kernels/copy_way.hpp"
#include "kernels/cpu/instructions/cpu_features.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"
#include "models/text/regex.hpp"
#include "tools/placement/processor_map.hpp"

namespace kvhive {
namespace {

std::string limit_text(std::uint64_t limit) {
  return limit == ProcessLimits::kNone ? "unlimited" : std::to_string(limit);
}

Finding kernel() {
  utsname name{};
  uname(&name);
  int major = 0, minor = 0;
  std::sscanf(name.release, "%d.%d", &major, &minor);
  const int version = 100 * major + minor;
  if (version < 506)
    return {"kernel", name.release, Fitness::bad, "kvhive needs Linux 5.6 (pidfd_getfd)"};
  if (version < 601)
    return {"kernel", name.release, Fitness::fair,
            "Linux 6.1 collapses shared memory into huge pages (MADV_COLLAPSE)"};
  return {"kernel", name.release, Fitness::good, ""};
}

/// Makes and maps a memory object: only trying shows what a container forbids.
Finding shared_memory() {
  auto made = create_memory("kvhive-doctor", kHugePage, Pages::huge);
  if (!made) return {"shared memory", "none", Fitness::bad, made.error().text};
  auto mapped = MappedMemory::map(made->get(), kHugePage, Access::read_write, "doctor");
  if (!mapped) return {"shared memory", "cannot be mapped", Fitness::bad, mapped.error().text};
  return {"shared memory", "memfd, sealed", Fitness::good, ""};
}

/// A sample: what the kernel forms of a GiB it may not form of the next.
Finding huge_pages() {
  constexpr std::size_t kSample = 32 * kHugePage;
  const auto fd = open_memory("kvhive-doctor");
  const std::size_t taken = fd ? take_huge_pages(fd->get(), kSample, 1, {}) : 0;
  const std::string value = format_bytes(taken) + " of " + format_bytes(kSample) + " tried";
  if (taken == kSample) return {"huge pages", value, Fitness::good, ""};
  return {"huge pages", value, Fitness::fair,
          "a pool has small pages, and first accesses take longer: free memory is fragmented "
          "(echo 1 > /proc/sys/vm/compact_memory), or Linux is older than 6.1"};
}

Finding memory() {
  const MachineMemory machine = machine_memory();
  const std::string value =
      format_bytes(machine.available) + " of " + format_bytes(machine.total) + " available";
  if (machine.available < std::size_t{512} << 20)
    return {"memory", value, Fitness::fair,
            "too little for most models; the limit is that of " + machine.bound};
  return {"memory", value, Fitness::good, ""};
}

Finding descriptors() {
  const ProcessLimits limits = take_process_limits();
  const std::string value = limit_text(limits.descriptors) + " per process";
  if (auto enough = check_descriptors(limits, 1); !enough)
    return {"descriptors", value, Fitness::bad, enough.error().text};
  if (limits.descriptors < 4096)
    return {"descriptors", value, Fitness::fair, "a client takes three: raise it (ulimit -Hn)"};
  return {"descriptors", value, Fitness::good, ""};
}

/// "64 cores with 128 processors, by node 0-31,64-95 | 32-63,96-127; time for 8".
Finding processors() {
  auto map = ProcessorMap::of_this_process();
  if (!map) return {"processors", "unknown", Fitness::fair, map.error().text};
  const ProcessorList all = map->processors();
  std::string value = std::to_string(map->cores()) + " cores";
  if (all.size() != map->cores()) value += " with " + std::to_string(all.size()) + " processors";
  if (const NodeList nodes = map->nodes_of(all); nodes.size() > 1) {
    std::string near;
    for (const std::uint32_t node : nodes)
      near += (near.empty() ? "" : " | ") + to_string(map->processors_near(node));
    value += ", by node " + near;
  }
  const auto quota = processor_quota();
  if (!quota || quota->processors >= map->cores()) return {"processors", value, Fitness::good, ""};
  return {"processors", value + fmt::format("; time for {:.3g}", quota->processors), Fitness::fair,
          quota->bound +
              " stops all threads of the group when the time is used up; engines have "
              "no more threads than that by default"};
}

/// What a pool's engines would compute with (--cpu-kernels auto), and why with nothing better.
Finding arithmetic() {
  const CpuKernels best = best_cpu_kernels();
  std::string value(to_string(best));
  std::string missing;
  for (auto kernels = kAllCpuKernels.rbegin(); kernels != kAllCpuKernels.rend(); ++kernels) {
    if (*kernels < best) value += ", or " + std::string(to_string(*kernels));
    if (*kernels > best) missing = missing_for(*kernels);
  }
  if (cpu_features().amx_refused)
    return {"CPU kernels", value, Fitness::fair,
            missing + "; start it where arch_prctl() may ask for them"};
  if (best < CpuKernels::avx512_bf16)
    return {"CPU kernels", value, Fitness::fair, missing + ": slower on bf16 models"};
  return {"CPU kernels", value + (missing.empty() ? "" : " (" + missing + ")"), Fitness::good, ""};
}

/// The way that is used, measured now, and the other.
template <class Way>
Finding chosen_way(const char* topic, const ChosenWay<Way>& chosen, const char* unit) {
  const auto shown = [&](Way way) {
    char rate[32];
    std::snprintf(rate, sizeof rate, " %.1f %s", chosen.rates[std::size_t(way)], unit);
    return std::string(to_string(way)) + rate;
  };
  if (chosen.rates == std::array<double, 2>{}) return {topic, "as usual", Fitness::good, ""};
  return {topic, shown(chosen.way) + " (" + shown(Way(1 - int(chosen.way))) + ")", Fitness::good,
          ""};
}

/// The GPU driver locks pages without regard to RLIMIT_MEMLOCK; mlock() and others have this limit.
Finding page_locks() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {"page locks", "unlimited", Fitness::good, ""};
  return {"page locks", format_bytes(limit.rlim_cur), Fitness::fair,
          "a host tier for a GPU may need more: ulimit -l unlimited"};
}

std::vector<Finding> gpu() {
  auto device = open_cuda_device(0);
  if (!device) return {{"GPU", "none", Fitness::fair, device.error().text}};
  const DeviceFacts& facts = (*device)->facts();
  std::vector<Finding> findings;
  findings.push_back({"GPU",
                      facts.name + ", compute capability " + std::to_string(facts.major) + "." +
                          std::to_string(facts.minor) + ", driver for CUDA " +
                          std::to_string(facts.driver_version / 1000) + "." +
                          std::to_string(facts.driver_version % 1000 / 10),
                      Fitness::good, ""});
  auto free = (*device)->free_bytes();
  findings.push_back(
      {"GPU memory",
       free ? format_bytes(*free) + " of " + format_bytes(facts.total_bytes) + " free" : "unknown",
       free ? Fitness::good : Fitness::bad, free ? "" : free.error().text});
  auto shared = (*device)->create_shared(facts.shared_granularity);
  Finding sharing{"GPU memory, shared", "by descriptors (VMM)", Fitness::good, ""};
  if (facts.memory_needs_its_maker)
    sharing = {
        "GPU memory, shared", "by legacy IPC", Fitness::fair,
        "one more process keeps it, and the daemon ends with it; VMM: " + facts.sharing_reason};
  if (!shared) sharing = {"GPU memory, shared", "no", Fitness::bad, shared.error().text};
  findings.push_back(std::move(sharing));
  return findings;
}

/// The version of Unicode that tokenizers' patterns go by.
Finding text() { return {"tokenizers", text_unicode_version(), Fitness::good, ""}; }

}  // namespace

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings = {kernel(),
                                   shared_memory(),
                                   huge_pages(),
                                   memory(),
                                   descriptors(),
                                   processors(),
                                   arithmetic(),
                                   chosen_way("dot products", dot_way(), "a ns"),
                                   chosen_way("block copies", copy_way(), "GB/s"),
                                   chosen_way("cache writes", write_way(), "GB/s"),
                                   page_locks(),
                                   text()};
  for (Finding& finding : gpu()) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace kvhive
