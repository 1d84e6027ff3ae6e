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
/// \param is_the_keepers  it was not started by hand, so nobody but the log is told
void tell(const Error& error, const Options& options, bool is_the_keepers) {
  if (options.log_file.empty() && !is_the_keepers)
    print_error_line("kvhive-engine: " + error.text);
  else
    spdlog::critical("{}", error.text);
  flush_log();
}

/// Makes memory that engines share on a GPU, and sends it to the keeper.
Expected<int> make_gpu_memory(const Options& options, Device* device, std::size_t bytes) {
  if (device == nullptr)
    return failure(Errc::bad_argument, "make-gpu-memory: there is no GPU with --device cpu");
  auto done = make_and_send_gpu_memory(*device, options, bytes);
  if (done) return 0;
  if (done.error().code != Errc::device_lost) return forward_error(done);
  // After the keeper has got the memory, it does not read standard error any more: the exit code
  // tells it the reason.
  print_error_line("kvhive-engine: " + done.error().text);
  return kExitDeviceLost;
}

/// What the process was started for.
struct Duty {
  std::uint32_t index = kAnyEngine;  ///< of the engine that it is; any: it was started by hand
  pid_t keeper = 0;
  std::optional<Described> described;  ///< it only answers this question
  std::size_t gpu_memory = 0;          ///< it only makes so much

  /// It logs to standard error, which the keeper reads.
  bool answers_keeper() const { return described.has_value() || gpu_memory != 0; }
  std::string name() const {
    return index == kAnyEngine ? "engine" : "engine " + std::to_string(index);
  }
};

/// \post if it fails, actors may run: end the process by _exit()
Expected<int> serve(const Options& options, const ModelConfig& config, const Duty& duty,
                    std::unique_ptr<Device> device) {
  const bool is_on_gpu = device != nullptr;
  auto engine = Engine::attach(options, config, duty.index, duty.keeper, std::move(device));
  if (!engine) return forward_error(engine);
  if (!is_on_gpu)
    if (auto kept = keep_only_calls_of(Program::engine, options.system_call_filter); !kept) {
      (void)engine->release();  // the actors run, so it must not be destroyed
      return forward_error(kept);
    }
  (*engine)->run();
  return 0;
}

Expected<int> do_duty(const Options& options, const Duty& duty, char** argv) {
  auto kernels = choose_cpu_kernels(options.cpu_kernels);
  if (!kernels) return forward_error(kernels);
  use_cpu_kernels(*kernels);
  auto config = load_model_config(hosted_model(options).directory);
  if (!config) return forward_error(config);
  if (auto dtype = kv_dtype_of(options.kv_cache_dtype, *config); !dtype)
    return forward_error(dtype);
  if (duty.described) {
    if (auto printed = print_model_facts(options, *config, *duty.described); !printed)
      return forward_error(printed);
    return 0;
  }
  if (duty.gpu_memory == 0)  // executes the program again, so it comes before the GPU context
    if (auto shared = share_cores(options, argv); !shared) return forward_error(shared);
  auto choice = choose_device(options);
  if (!choice) return forward_error(choice);
  if (duty.gpu_memory != 0) return make_gpu_memory(options, choice->device.get(), duty.gpu_memory);
  return serve(options, *config, duty, std::move(choice->device));
}

/// Gives up what the process does not need, and sees to it that the kernel ends it rather than the
/// keeper: an engine is started again, the keeper's end is the daemon's.
Expected<void> become_modest(const Options& options) {
  auto user = wanted_user(options);
  if (!user) return forward_error(user);
  if (auto dropped = drop_privileges(options, *user); !dropped) return dropped;
  keep_one_heap();
  take_descriptor_table();
  offer_to_oom_killer();
  if (!options.core_dumps) forbid_core_dumps();
  return {};
}

Expected<int> run(int argc, char** argv) {
  CommandLine app(
      "kvhive-engine",
      "kvhive-engine: one engine process of a pool. kvhived starts its own engines; an "
      "engine that is started by hand, for example in a container, joins the daemon that "
      "listens on --socket");
  OptionFlags flags(app);
  Duty duty;
  app.add_option("--index", duty.index, "number of this engine; without it the first that is free")
      ->default_str("");
  app.add_option("--keeper", duty.keeper,
                 "the kvhived (its pid) that started this engine; the engine joins no other")
      ->default_str("");
  add_choice<Described>(app, "--describe", duty.described,
                        "print what the model needs as JSON and leave; profile also measures the "
                        "memory of a step");
  app.add_option("--make-gpu-memory", duty.gpu_memory,
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
  if (auto modest = become_modest(*options); !modest) return forward_error(modest);
  if (auto started = start_log(duty.name(), std::string(to_string(options->log_level)),
                               duty.answers_keeper() ? "" : options->log_file);
      !started)
    return forward_error(started);
  auto done = do_duty(*options, duty, argv);
  if (done || duty.answers_keeper()) return done;
  tell(done.error(), *options, duty.index != kAnyEngine);
  _exit(1);
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  return kvhive::run_program("kvhive-engine", kvhive::run, argc, argv);
}
