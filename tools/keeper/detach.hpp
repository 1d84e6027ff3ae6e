#pragma once
// How the daemon tells the user who started it whether it runs, in the
// foreground and detached.

#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class Starter {
 public:
  /// The user sees this process's standard output and error. Both are kept open
  /// for the two lines below, whatever becomes of standard error (a log file).
  [[nodiscard]] static Expected<Starter> in_foreground();

  /// Forks. Returns in the child, which has a session of its own and /dev/null
  /// as standard input and output; its standard error is to become a log file.
  /// The parent waits, prints the child's line where the user sees it, and
  /// exits: 0 = ready, 1 = failed. So no descriptor of the shell stays open in
  /// the daemon, and `$(kvhived --detach)` returns. \param log  the log file's
  /// path, named if the child ends without a line
  [[nodiscard]] static Expected<Starter> detach(const std::string& log);

  /// The daemon serves: `line` goes to the user's standard output. An error
  /// says that it could not be written; the daemon runs all the same.
  [[nodiscard]] Expected<void> ready(const std::string& line);
  /// The daemon cannot start: `line` goes to the user's standard error.
  void failed(const std::string& line);

 private:
  Starter() = default;
  UniqueFd out_, err_;  ///< foreground
  UniqueFd report_;     ///< detached: a pipe to the parent
};

/// Where a detached daemon logs unless the operator names a file:
/// kvhive/kvhived.log under $XDG_STATE_HOME, else under /var/log for root, else
/// under ~/.local/state. The directory is made.
[[nodiscard]] Expected<std::string> default_log_file();

}  // namespace kvhive
