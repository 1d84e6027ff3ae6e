#include "tests/enemies/operator.hpp"

#include <chrono>
#include <thread>

namespace kvhive::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{1000};

const std::vector<std::vector<std::string>> kCommands = {
    {"pool", "stat"}, {"pool", "procs"}, {"pool", "fsck", "--privileged"}};

std::string joined(const std::vector<std::string>& words) {
  std::string text = "kvhive";
  for (const std::string& word : words) text += " " + word;
  return text;
}

}  // namespace

void live_as_operator(Board& board, const Daemon& daemon) {
  for (std::size_t i = 0;; ++i) {
    const auto& command = kCommands[i % kCommands.size()];
    const std::uint32_t round = board.round;
    const auto start = Clock::now();
    const CommandResult result = daemon.cli(command);
    const std::chrono::duration<float, std::milli> ms = Clock::now() - start;
    if (result.exit_code != 0)
      board.operators.add(joined(command) + " ended with " + std::to_string(result.exit_code) +
                          ": " + result.err + result.out);
    board.commands.add({round, ms.count(), ms.count()});
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace kvhive::testing
