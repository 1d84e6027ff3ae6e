#pragma once
// A program on a terminal of its own, as a user would run it.

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/check.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

class PseudoTerminal {
 public:
  /// \param before_exec  called in the child, to change its environment
  PseudoTerminal(const std::vector<std::string>& command, unsigned short columns,
                 unsigned short rows, const BeforeExec& before_exec = {}) {
    const winsize size{rows, columns, 0, 0};
    pid_ = forkpty(&master_, nullptr, nullptr, &size);
    KV_CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    setenv("TERM", "xterm-256color", 1);
    setenv("LANG", "C.UTF-8", 1);
    for (const char* name : {"NO_COLOR", "COLORTERM", "LC_ALL", "LC_CTYPE"}) unsetenv(name);
    if (before_exec) before_exec();
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    if (!has_ended_) signal_process(pid_, SIGKILL);
    close(master_);
    if (!has_ended_) waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }

  void type(const std::string& keys) const {
    KV_CHECK(write(master_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  /// The kernel tells the program by SIGWINCH.
  void resize(unsigned short columns, unsigned short rows) const {
    const winsize size{rows, columns, 0, 0};
    KV_CHECK(ioctl(master_, TIOCSWINSZ, &size) == 0);
  }
  /// The terminal's mode, as another program would find it.
  termios mode() const {
    termios mode{};
    KV_CHECK(tcgetattr(master_, &mode) == 0);
    return mode;
  }

  /// All that was printed so far.
  const std::string& printed() const { return printed_; }
  /// Reads until `text` was printed, behind what an earlier call has found; false if it was not
  /// within 30 s, or the program has ended.
  bool shows(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (true) {
      if (const std::size_t at = printed_.find(text, seen_); at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !read_more(1000)) return false;
    }
  }
  /// Passes over what has been printed until now.
  void pass_over() { seen_ = printed_.size(); }

  /// Reads to the end; the wait status.
  int wait_for_end() {
    while (read_more(-1)) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    has_ended_ = true;
    return status;
  }

 private:
  /// False: nobody has the terminal any more.
  bool read_more(int timeout_ms) {
    pollfd ready{master_, POLLIN, 0};
    if (poll(&ready, 1, timeout_ms) == 0) return true;
    char piece[4096];
    const ssize_t got = read(master_, piece, sizeof piece);
    if (got <= 0) return false;
    printed_.append(piece, static_cast<std::size_t>(got));
    return true;
  }

  int master_ = -1;
  pid_t pid_ = 0;
  std::string printed_;
  std::size_t seen_ = 0;
  bool has_ended_ = false;
};

}  // namespace kvhive::testing
