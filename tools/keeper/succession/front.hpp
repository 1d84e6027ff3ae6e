#pragma once
// The front: the process that the user, the shell or the system's manager has started, and that
// lives as long as the daemon. It owns the socket's name, takes the signals, collects orphans, and
// starts keepers. It shares its table of descriptors with them, so that all of a killed keeper's
// stay open (ARCHITECTURE.md, "No single point").

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/options.hpp"
#include "config/machine/process_limits.hpp"
#include "ipc/listener.hpp"
#include "tools/keeper/domains.hpp"
#include "tools/keeper/succession/ledger.hpp"
#include "tools/keeper/succession/orphan_collector.hpp"

namespace kvhive {

/// What the front has made, and each keeper gets.
struct Estate {
  Options options;  ///< see read_options()
  ProcessLimits limits;
  Domains domains;
  Listener listener;
  LedgerMemory ledger;
  pid_t front = 0;
  UniqueFd front_pidfd;
  /// A pipe that nobody writes to. Whoever reads it sees its end when front and keeper are both
  /// gone.
  UniqueFd lifeline_end, lifeline;
  std::set<int> descriptors;         ///< all that were open before there was a keeper
  std::vector<std::string> command;  ///< of the process that was started
};

/// The options, which an operator may change while the daemon runs: each keeper reads them anew.
/// Error: they are too long; nothing is written.
[[nodiscard]] Expected<void> write_options(const Options& options, const LedgerMemory& memory);
[[nodiscard]] Expected<Options> read_options(const LedgerMemory& memory);

/// Executes the front's program in this process's place. It goes on with all descriptors, and has
/// this process's number and children. Returns only if that fails.
/// \param program  its file; empty = the one that runs
[[nodiscard]] Error become_front(const Estate& estate, const std::string& program);

/// The ledger that this program was executed with; nothing = it was started as usual.
std::optional<UniqueFd> handed_ledger();

/// A signal that the front passes on to the keeper, in the value that goes with it.
struct PassedOn {
  int number = 0;
  bool is_of_the_terminal = false;  ///< else somebody has sent it

  static PassedOn of(int value) { return {value & 0xff, value > 0xff}; }
  int value() const { return number | (is_of_the_terminal ? 0x100 : 0); }
};

/// Exit code of a keeper that hands over: the front executes the program that the ledger names.
inline constexpr int kExitHandsOver = 87;
/// What the ledger says of it, as JSON.
struct HandOver {
  std::string program;  ///< that is to go on; empty = it does, or has failed to
  std::string error;    ///< why it could not be executed

  void write(const LedgerMemory& memory) const;
  static HandOver read(const LedgerMemory& memory);
};

class Front {
 public:
  /// Binds the socket and makes the ledger. From here on signals are blocked.
  [[nodiscard]] static Expected<Front> open(const Options& options);
  /// Goes on with what an earlier program has made, and with its options: a file of options may
  /// have changed since.
  [[nodiscard]] static Expected<Front> go_on(UniqueFd ledger);

  /// Starts a keeper, which calls `keep` and ends with its result, and another when one is killed,
  /// until a keeper ends by itself, or there were too many in vain.
  /// \return  the exit code of the last keeper. Errors: why the daemon has ended without one
  [[nodiscard]] Expected<int> run(const std::function<int(Estate&)>& keep);

  const Options& options() const { return estate_.options; }

 private:
  explicit Front(Estate estate) : estate_(std::move(estate)) {}
  [[nodiscard]] Expected<void> start_keeper(const std::function<int(Estate&)>& keep);
  [[nodiscard]] Expected<void> next_keeper(const std::function<int(Estate&)>& keep, int signal);
  [[nodiscard]] Expected<void> hand_over(const std::function<int(Estate&)>& keep);
  void forward(const siginfo_t& signal);
  void end_orphans();
  void write_estate() const;
  static void prepare_process();

  Estate estate_;
  std::unique_ptr<OrphanCollector> collector_;  ///< while run() runs
  pid_t keeper_ = 0;
  std::optional<siginfo_t> hangup_;  ///< the last
};

}  // namespace kvhive
