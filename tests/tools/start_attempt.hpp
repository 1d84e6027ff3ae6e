#pragma once
// Starts a kvhived that may not be able to start. It must print "ready" or an error. A signal, a
// minute without output, or an exit without an error message is a failure of the test.

#include <string>
#include <vector>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

class StartAttempt {
 public:
  /// Starts kvhived with the demo model and `flags`, and waits for "ready" or an error.
  explicit StartAttempt(std::vector<std::string> flags, const BeforeExec& before_exec = {});
  ~StartAttempt();

  bool is_ready() const { return is_ready_; }
  /// The standard error of a daemon that is not ready.
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
