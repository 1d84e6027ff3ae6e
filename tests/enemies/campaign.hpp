#pragma once
// One run: a daemon, enemies, an honest client and an operator; sets of three rounds (calm, attacks
// on a second daemon, storm); then SIGTERM in the middle of a storm.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/enemies/besiegers.hpp"
#include "tests/enemies/census.hpp"
#include "tests/enemies/verdict.hpp"
#include "tests/support/shared_value.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {

struct Settings {
  double minutes = 1;
  std::size_t enemies = 8;
  std::uint32_t seed = 0;
  bool is_root = false;
  std::string words;  ///< Arms::words
};

class Campaign {
 public:
  explicit Campaign(const Settings& settings);

  /// Prints what happens. True = all promises were kept.
  bool run();

 private:
  /// What was measured in a round.
  struct Round {
    Phase phase{};
    std::size_t requests = 0;
    std::uint64_t attacks = 0;
    double first_p50 = 0, first_p99 = 0, whole_p50 = 0, whole_p99 = 0;
    double keeper_ran = 0, engines_ran = 0;  ///< processors that they had on average
    double waited = 0;  ///< threads of engines and honest client that wanted one, on average
  };

  void start_honest();
  void enter(Phase phase);
  void tend_for(std::chrono::duration<double> time);
  Round play(Phase phase);
  void play_sets();
  Round measured(Phase phase) const;
  void print(const Round& round) const;
  void stop_in_the_storm();

  void judge_speed(Verdict& verdict) const;
  void judge_harm(Verdict& verdict) const;
  void judge_use(Verdict& verdict) const;
  void judge_end(Verdict& verdict) const;
  void print_attacks() const;

  bool only_honest_clients(const Json& status) const;
  std::string log_text() const;

  Settings settings_;
  TempDirectory logs_;
  SharedValue<Board> board_;
  std::optional<Daemon> daemon_, decoy_;
  std::optional<Besiegers> enemies_;
  ChildProcess honest_, operator_;
  std::vector<std::array<Round, kPhases>> sets_;  ///< a round of each phase, in order of Phase
  Census before_, after_, most_;
  Processes at_first_, at_last_;
  int decoys_restarts_ = 0;
  std::uint32_t rounds_ = 0;
  bool were_channels_left_ = false, is_fsck_clean_ = false;
  double stop_seconds_ = -1;
  std::string left_;  ///< what was left after the end, in words
};

}  // namespace kvhive::testing
