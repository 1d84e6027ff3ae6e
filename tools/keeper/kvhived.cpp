// kvhived: the daemon. Parses options, starts the keeper, says when it is ready.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "tools/keeper/keeper.hpp"
#include "tools/program/option_flags.hpp"
#include "tools/program/program.hpp"

namespace kvhive {
namespace {

/// In the background, the parent stays until the daemon is ready (or has said why not) and then
/// leaves.
class Background {
 public:
  static Background detach() {
    signal(SIGPIPE, SIG_IGN);  // whoever reads our log may go away
    Background background;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return background;
    UniqueFd read_end(ends[0]), write_end(ends[1]);
    if (fork() == 0) {
      setsid();
      background.report_ = std::move(write_end);
      return background;
    }
    write_end = UniqueFd();
    char ready = 0;
    _exit(read(read_end.get(), &ready, 1) == 1 ? 0 : 1);
  }

  void ready() {
    if (report_ && write(report_.get(), "r", 1) < 0) spdlog::debug("the starting shell is gone");
    report_ = UniqueFd();
  }

 private:
  UniqueFd report_;
};

Expected<int> run(int argc, char** argv) {
  CLI::App app{
      "kvhived: one KV cache per host. Starts a pool in shared memory and the engines that share "
      "it."};
  app.name("kvhived");
  OptionFlags flags(app);
  bool is_detached = false;
  app.add_flag("--detach", is_detached,
               "return when the daemon is ready, leaving it in the background");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  auto options = flags.options();
  if (!options) return forward_error(options);
  if (options->socket.empty()) options->socket = default_socket();
  if (auto valid = check_options(*options); !valid) return forward_error(valid);

  Background background;
  if (is_detached) background = Background::detach();
  start_log("kvhived", std::string(to_string(options->log_level)));
  auto keeper = Keeper::start(*options);
  if (!keeper) return forward_error(keeper);
  if (*keeper == nullptr) return 0;  // stopped before it was ready
  const MadePool& pool = (*keeper)->pool();
  const std::size_t block_bytes = pool.model.layout.block_bytes();
  spdlog::info(
      "{}: {} device and {} host blocks of {} ({} tokens each), sequences of up to {} tokens",
      pool.model.name, pool.size.device_blocks - 1, pool.size.host_blocks,
      format_bytes(block_bytes), options->block_size, pool.size.max_model_len);
  auto ended = (*keeper)->run([&] {
    std::printf("kvhived: ready on %s (%u engines)\n", (*keeper)->socket_path().c_str(),
                options->engines);
    std::fflush(stdout);
    background.ready();
  });
  if (!ended) return forward_error(ended);
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) { return kvhive::run_program("kvhived", kvhive::run, argc, argv); }
