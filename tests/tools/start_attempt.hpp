#pragma once
// kvhived where it may not be able to start: it says ready, or why not. A third thing (a signal, a
// silence of a minute, an exit without a word) is a failure of the test.

#include <string>
#include <vector>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

class StartAttempt {
 public:
  /// Starts it with the demo model and these flags more, and waits for the one or the other.
  explicit StartAttempt(std::vector<std::string> flags, const BeforeExec& before_exec = {});
  ~StartAttempt();

  bool is_ready() const { return is_ready_; }
  /// What it said on standard error, if it is not ready.
  const std::string& words() const { return words_; }
  pid_t pid() const { return pid_; }
  const std::string& socket() const { return socket_; }

 private:
  void expect_words(int status);

  std::string directory_, socket_, words_;
  pid_t pid_ = 0;
  bool is_ready_ = false;
};

}  // namespace kvhive::testing
