#pragma once
// How the daemon tells the user who started it that it is ready or has failed, in the foreground
// and detached (in the background).

#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "tools/keeper/succession/service_manager.hpp"

namespace kvhive {

class Starter {
 public:
  /// For a daemon in the foreground. Duplicates standard output and standard error, so that ready()
  /// and failed() reach the user even after standard error has become a log file. ready() tells a
  /// service manager, too.
  [[nodiscard]] static Expected<Starter> in_foreground();

  /// Forks. Returns in the child, which has a session of its own and /dev/null as standard input
  /// and output. The caller makes the child's standard error a log file. The parent waits for the
  /// child's line, prints it to the user and exits: 0 = ready, 1 = failed. So no descriptor of the
  /// shell stays open in the daemon, and `$(kvhived --detach)` returns.
  ///
  /// \param log  the log file's path; the parent names it if the child ends without a line
  [[nodiscard]] static Expected<Starter> detach(const std::string& log);

  /// For a daemon that has told its user already. failed() writes to standard error.
  [[nodiscard]] static Starter of_nobody() { return {}; }

  /// The daemon serves: writes `line` to the user's standard output. Error: it could not be
  /// written; Errc::peer_died if the process that started a detached daemon has ended.
  [[nodiscard]] Expected<void> ready(const std::string& line);
  /// The daemon cannot start: writes `line` to the user's standard error.
  void failed(const std::string& line);

 private:
  Starter() = default;
  UniqueFd out_, err_;  ///< in the foreground: copies of standard output and standard error
  UniqueFd report_;     ///< detached: a pipe to the parent
  ServiceManager manager_;
};

/// The log file of a detached daemon if the operator names none: kvhive/kvhived.log under
/// $XDG_STATE_HOME; if that is not set, under /var/log for root and under ~/.local/state for other
/// users.
/// \param is_of_system  under /var/log in any case, because the daemon changes to another user
[[nodiscard]] Expected<std::string> default_log_file(bool is_of_system);
/// Makes its directory, if it is missing.
[[nodiscard]] Expected<void> make_log_directory(const std::string& log_file);

}  // namespace kvhive
