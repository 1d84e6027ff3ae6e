// kvhive doctor: whether this machine has what a daemon needs, what it has of what makes one fast,
// and what to do about the rest.

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/byte_size.hpp"
#include "base/cpu_features.hpp"
#include "base/memory_object.hpp"
#include "config/machine_memory.hpp"
#include "config/process_limits.hpp"
#include "device/device.hpp"
#include "models/text/regex.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

/// good, could be better (a daemon runs all the same), or bad (it does not).
enum class Verdict : std::uint8_t { good, fair, bad };

struct Finding {
  std::string topic, value;
  Verdict verdict = Verdict::good;
  std::string remedy;  ///< where it is not good
};

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::good: return "good";
    case Verdict::fair: return "fair";
    case Verdict::bad: return "bad";
  }
  return "unknown";
}

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
    return {"kernel", name.release, Verdict::bad, "kvhive needs Linux 5.6 (pidfd_getfd)"};
  if (version < 601)
    return {"kernel", name.release, Verdict::fair,
            "Linux 6.1 collapses shared memory into huge pages (MADV_COLLAPSE)"};
  return {"kernel", name.release, Verdict::good, ""};
}

/// By trying: what a container forbids looks as if it were there.
Finding shared_memory() {
  auto made = create_memory("kvhive-doctor", std::size_t{2} << 20, Pages::huge);
  if (!made) return {"shared memory", "none", Verdict::bad, made.error().text};
  auto mapped = MappedMemory::map(made->get(), std::size_t{2} << 20, Access::read_write, "doctor");
  if (!mapped) return {"shared memory", "cannot be mapped", Verdict::bad, mapped.error().text};
  return {"shared memory", "memfd, sealed", Verdict::good, ""};
}

Finding memory() {
  const MachineMemory machine = machine_memory();
  const std::string value =
      format_bytes(machine.available) + " of " + format_bytes(machine.total) + " to be had";
  if (machine.available < std::size_t{512} << 20)
    return {"memory", value, Verdict::fair,
            "too little for most models; what leaves so much is " + machine.bound};
  return {"memory", value, Verdict::good, ""};
}

Finding descriptors() {
  const ProcessLimits limits = take_process_limits();
  const std::string value = limit_text(limits.descriptors) + " per process";
  if (auto enough = check_descriptors(limits, 1); !enough)
    return {"descriptors", value, Verdict::bad, enough.error().text};
  if (limits.descriptors < 4096)
    return {"descriptors", value, Verdict::fair, "a client takes three: raise it (ulimit -Hn)"};
  return {"descriptors", value, Verdict::good, ""};
}

Finding processors() {
  std::string isa = "no AVX2";
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx2) isa = "AVX2";
  if (cpu.avx512) isa = "AVX-512";
  if (cpu.avx512_bf16) isa = "AVX-512 with bf16";
  const std::string value = std::to_string(std::thread::hardware_concurrency()) + " cores, " + isa;
  if (isa == "AVX-512 with bf16") return {"processors", value, Verdict::good, ""};
  return {"processors", value, Verdict::fair, "slower on bf16 models without AVX-512 BF16"};
}

/// Locked by the driver, which asks nobody; but what asks the kernel has this limit.
Finding page_locks() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {"page locks", "unlimited", Verdict::good, ""};
  return {"page locks", format_bytes(limit.rlim_cur), Verdict::fair,
          "a host tier for a GPU may need more: ulimit -l unlimited"};
}

std::vector<Finding> gpu() {
  auto device = open_cuda_device(0);
  if (!device) return {{"GPU", "none", Verdict::fair, device.error().text}};
  const DeviceFacts& facts = (*device)->facts();
  std::vector<Finding> findings;
  findings.push_back({"GPU",
                      facts.name + ", compute capability " + std::to_string(facts.major) + "." +
                          std::to_string(facts.minor) + ", driver for CUDA " +
                          std::to_string(facts.driver_version / 1000) + "." +
                          std::to_string(facts.driver_version % 1000 / 10),
                      Verdict::good, ""});
  auto free = (*device)->free_bytes();
  findings.push_back(
      {"GPU memory",
       free ? format_bytes(*free) + " of " + format_bytes(facts.total_bytes) + " free" : "unknown",
       free ? Verdict::good : Verdict::bad, free ? "" : free.error().text});
  auto shared = (*device)->create_shared(facts.shared_granularity);
  Finding sharing{"GPU memory, shared", "by descriptors (VMM)", Verdict::good, ""};
  if (facts.memory_needs_its_maker)
    sharing = {
        "GPU memory, shared", "by legacy IPC", Verdict::fair,
        "one more process keeps it, and the daemon ends with it; VMM: " + facts.sharing_reason};
  if (!shared) sharing = {"GPU memory, shared", "no", Verdict::bad, shared.error().text};
  findings.push_back(std::move(sharing));
  return findings;
}

Finding text() { return {"tokenizers", text_unicode_version(), Verdict::good, ""}; }

Expected<bool> examine(const CommonFlags& flags) {
  std::vector<Finding> findings = {kernel(),     shared_memory(), memory(), descriptors(),
                                   processors(), page_locks(),    text()};
  for (Finding& finding : gpu()) findings.push_back(std::move(finding));
  bool is_fit = true;
  nlohmann::json json = nlohmann::json::array();
  Table table;
  for (const Finding& f : findings) {
    is_fit = is_fit && f.verdict != Verdict::bad;
    json.push_back({{"topic", f.topic},
                    {"value", f.value},
                    {"verdict", to_string(f.verdict)},
                    {"remedy", f.remedy}});
    table.add({to_string(f.verdict), f.topic, f.value, f.remedy});
  }
  if (flags.output() == Format::json)
    std::printf("%s\n", json.dump(2).c_str());
  else
    std::printf("%s", table.text().c_str());
  return is_fit;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "whether this machine has what a daemon needs; exit code 1 if it has not");
  flags->add_format_to(*command);
  command->callback([flags, &exit_code] {
    auto is_fit = examine(*flags);
    if (!is_fit)
      exit_code = fail(is_fit.error());
    else if (!*is_fit)
      exit_code = 1;
  });
}

}  // namespace kvhive
