// kvhive-engine: one engine process. Loads the model, attaches to the pool and serves the channels
// that the keeper gives it. With --describe it only prints what the model needs; with
// --make-gpu-memory it only makes the memory that engines share on a GPU.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/exit_codes.hpp"
#include "base/log.hpp"
#include "config/models/hosted_models.hpp"
#include "config/machine/process_limits.hpp"
#include "ipc/default_socket.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "tools/engine/describe.hpp"
#include "tools/engine/device_choice.hpp"
#include "tools/engine/engine.hpp"
#include "tools/engine/gpu_memory.hpp"
#include "tools/placement/processor_mask.hpp"
#include "tools/privilege/drop.hpp"
#include "tools/privilege/system_calls.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/option_flags.hpp"
#include "tools/program/program.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

/// For an engine that a user starts: sets the environment variables that the keeper sets for its
/// own engines, takes its processors, and executes the program again, because OpenMP reads its
/// environment before main(). Threads that wait must sleep, because several engines share the
/// cores.
Expected<void> share_cores(const Options& options, char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return {};
  if (options.cpu_bind.way == CpuBind::Way::listed)
    if (auto bound = ProcessorMask(options.cpu_bind.lists.front()).bind(); !bound)
      return failure(bound.error().code, "cpu-bind: '" + to_string(options.cpu_bind) +
                                             "': " + bound.error().text +
                                             "; name processors that this process may run on");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  if (options.threads != 0) setenv("OMP_NUM_THREADS", std::to_string(options.threads).c_str(), 1);
  flush_log();
  // By its path, so that ps and top show its name. If that fails (no /proc, or the program was
  // replaced), the engine goes on with the defaults.
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) execv(program.c_str(), argv);
  execv("/proc/self/exe", argv);
  return {};
}

/// Tells why the engine cannot serve. The keeper finds a log line by the engine's pid.
void tell(const Error& error, const Options& options) {
  if (options.log_file.empty())
    print_error_line("kvhive-engine: " + error.text);
  else
    spdlog::critical("{}", error.text);
  flush_log();
}

Expected<int> run(int argc, char** argv) {
  CommandLine app(
      "kvhive-engine",
      "kvhive-engine: one engine process of a pool. kvhived starts its own engines; an "
      "engine that is started by hand, for example in a container, joins the daemon that "
      "listens on --socket");
  OptionFlags flags(app);
  std::uint32_t index = kAnyEngine;
  pid_t keeper = 0;
  std::optional<Described> described;
  app.add_option("--index", index, "number of this engine; without it the first that is free")
      ->default_str("");
  app.add_option("--keeper", keeper,
                 "the kvhived (its pid) that started this engine; the engine joins no other")
      ->default_str("");
  add_choice<Described>(app, "--describe", described,
                        "print what the model needs as JSON and leave; profile also measures the "
                        "memory of a step");
  std::size_t gpu_memory = 0;
  app.add_option("--make-gpu-memory", gpu_memory,
                 "make memory for the pool's device tier on the GPU, of so many bytes, and for the "
                 "weights, and send its descriptors through standard input, a socket");
  if (const auto code = app.read(argc, argv)) return *code;
  // A terminal sends these to all processes of the daemon; only the keeper acts on them.
  for (const int number : {SIGINT, SIGHUP}) signal(number, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  auto options = flags.options();
  if (!options) return forward_error(options);
  if (options->socket.empty()) options->socket = default_socket();
  if (auto valid = check_options(*options); !valid) return forward_error(valid);
  auto user = wanted_user(*options);
  if (!user) return forward_error(user);
  if (auto dropped = drop_privileges(*options, *user); !dropped) return forward_error(dropped);
  keep_one_heap();
  offer_to_oom_killer();  // an engine is started again; the keeper's end is the daemon's
  if (!options->core_dumps) forbid_core_dumps();
  // An engine that answers a question of the keeper logs to standard error, which the keeper reads.
  const bool answers_keeper = described.has_value() || gpu_memory != 0;
  if (auto started = start_log(index == kAnyEngine ? "engine" : "engine " + std::to_string(index),
                               std::string(to_string(options->log_level)),
                               answers_keeper ? "" : options->log_file);
      !started)
    return forward_error(started);

  auto kernels = choose_cpu_kernels(options->cpu_kernels);
  if (!kernels) return forward_error(kernels);
  use_cpu_kernels(*kernels);

  auto config = load_model_config(hosted_model(*options).directory);
  if (!config) return forward_error(config);
  if (auto dtype = kv_dtype_of(options->kv_cache_dtype, *config); !dtype)
    return forward_error(dtype);
  if (described) {
    if (auto printed = print_model_facts(*options, *config, *described); !printed)
      return forward_error(printed);
    return 0;
  }
  if (gpu_memory == 0)  // executes the program again, so it comes before the GPU context
    if (auto shared = share_cores(*options, argv); !shared) return forward_error(shared);
  auto choice = choose_device(*options);
  if (!choice) return forward_error(choice);
  if (gpu_memory != 0) {
    if (choice->device == nullptr)
      return failure(Errc::bad_argument, "make-gpu-memory: there is no GPU with --device cpu");
    auto done = make_and_send_gpu_memory(*choice->device, *options, gpu_memory);
    if (done) return 0;
    if (done.error().code != Errc::device_lost) return forward_error(done);
    // After the keeper has got the memory, it does not read standard error any more: the exit code
    // tells it the reason.
    print_error_line("kvhive-engine: " + done.error().text);
    return kExitDeviceLost;
  }
  const bool is_on_gpu = choice->device != nullptr;
  auto engine = Engine::attach(*options, *config, index, keeper, std::move(choice->device));
  if (!engine) {
    tell(engine.error(), *options);
    return 1;
  }
  if (!is_on_gpu)
    if (auto kept = keep_only_calls_of(Program::engine, options->system_call_filter); !kept) {
      tell(kept.error(), *options);
      _exit(1);  // the actors run, so the engine must not be destroyed
    }
  (*engine)->run();
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  return kvhive::run_program("kvhive-engine", kvhive::run, argc, argv);
}
