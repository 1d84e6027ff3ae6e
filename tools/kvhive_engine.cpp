// kvhive-engine: one engine process. Loads the model, attaches to the pool, serves the channels the
// keeper gives it. With --describe it only says what the model needs.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "config/exit_codes.hpp"
#include "config/log.hpp"
#include "tools/engine/describe.hpp"
#include "tools/engine/device_choice.hpp"
#include "tools/engine/engine.hpp"
#include "tools/engine/gpu.hpp"
#include "tools/option_flags.hpp"
#include "tools/program.hpp"

namespace kvhive {
namespace {

/// OpenMP reads its environment before main(). What the keeper sets for its own engines, one that
/// was started by hand sets for itself, and begins again: several engines share the cores, threads
/// that wait must sleep.
void share_cores(const Options& options, char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  if (options.threads != 0) setenv("OMP_NUM_THREADS", std::to_string(options.threads).c_str(), 1);
  execv("/proc/self/exe", argv);  // without /proc we do as well as we can
}

/// A context that is lost may not say so unless it is given work.
Expected<void> try_context(Device& device) {
  constexpr std::size_t kBytes = 256;
  auto scratch = DeviceBuffer::allocate(device, kBytes);
  if (!scratch) return forward_error(scratch);
  auto lane = Lane::open(device);
  if (!lane) return forward_error(lane);
  auto done = device.fill(scratch->data(), std::byte{0}, kBytes, lane->stream());
  return done ? lane->finish() : done;
}

/// Makes a GPU's memory for the keeper, at the other end of our standard input. What lives no
/// longer than we do we keep until it hangs up; when it says something we look whether it is there
/// still.
Expected<void> hand_over_gpu_memory(Device& device, const Options& options,
                                    const ModelConfig& config, std::size_t arena_bytes) {
  auto made = make_gpu_memory(device, options, config, arena_bytes);
  if (!made) return forward_error(made);
  Message message;
  message.type = MessageType::gpu_memory;
  message.needs_its_maker = device.facts().memory_needs_its_maker ? 1 : 0;
  if (auto sent = send_packet(STDIN_FILENO, message, {made->arena.get(), made->weights.get()});
      !sent || message.needs_its_maker == 0)
    return sent;
  for (const int stop : {SIGTERM, SIGHUP}) signal(stop, SIG_IGN);  // the keeper says when
  pollfd keeper{STDIN_FILENO, POLLIN, 0};
  while (true) {
    if (poll(&keeper, 1, -1) < 0) continue;  // EINTR
    auto packet = receive_packet(STDIN_FILENO);
    if (!packet || !*packet) return {};
    if (auto alive = try_context(device); !alive && alive.error().code == Errc::device_lost)
      return alive;
  }
}

Expected<int> run(int argc, char** argv) {
  CLI::App app{
      "kvhive-engine: one engine process of a pool. Usually started by kvhived; started by hand, "
      "in "
      "a container say, it joins the daemon that listens on --socket"};
  app.name("kvhive-engine");
  OptionFlags flags(app);
  std::uint32_t index = kAnyEngine;
  std::string describe_what;
  app.add_option("--index", index, "number of this engine; without it the first that is free");
  app.add_option("--describe", describe_what,
                 "print what the model needs as JSON and leave: config, or profile to measure")
      ->check(CLI::IsMember({"config", "profile"}));
  std::size_t gpu_memory = 0;
  app.add_option("--make-gpu-memory", gpu_memory,
                 "make a GPU's share of the pool, so many bytes, and the weights; hand them over "
                 "through standard input, a socket, and leave when they live without us");
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  signal(SIGINT, SIG_IGN);  // Ctrl-C is for the keeper
  signal(SIGPIPE, SIG_IGN);
  auto options = flags.options();
  if (!options) return forward_error(options);
  if (options->socket.empty()) options->socket = default_socket();
  if (auto valid = check_options(*options); !valid) return forward_error(valid);
  start_log(index == kAnyEngine ? "engine" : "engine " + std::to_string(index), options->log_level);

  auto config = load_model_config(options->model);
  if (!config) return forward_error(config);
  if (!describe_what.empty()) {
    if (auto described = print_model_facts(*options, *config, describe_what); !described)
      return forward_error(described);
    return 0;
  }
  if (gpu_memory == 0) share_cores(*options, argv);  // before a context is made, which would go
  auto choice = choose_device(*options);
  if (!choice) return forward_error(choice);
  options->device = choice->name;
  if (gpu_memory != 0) {
    if (choice->device == nullptr)
      return failure(Errc::bad_argument, "make-gpu-memory: there is no GPU with --device cpu");
    auto done = hand_over_gpu_memory(*choice->device, *options, *config, gpu_memory);
    if (done) return 0;
    if (done.error().code != Errc::device_lost) return forward_error(done);
    std::fprintf(stderr, "kvhive-engine: %s\n", done.error().text.c_str());
    return kExitDeviceLost;
  }
  auto engine = Engine::attach(*options, *config, index, std::move(choice->device));
  if (!engine) return forward_error(engine);
  (*engine)->run();
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  return kvhive::run_program("kvhive-engine", kvhive::run, argc, argv);
}
