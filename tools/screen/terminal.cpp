#include "tools/screen/terminal.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "tools/screen/output_style.hpp"

namespace kvhive {
namespace {

// Alternate screen, no cursor, no wrapping at the right edge.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[?7l\033[2J";
constexpr std::string_view kLeave = "\033[?2026l\033[0m\033[?7h\033[?25h\033[?1049l";
constexpr std::array<int, 5> kCrashes = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

// For the handler of crashes, which can reach no object.
termios before;
std::atomic<bool> is_taken = false;

/// Only calls that a signal handler may make.
void restore() {
  if (!is_taken.exchange(false)) return;
  for (std::string_view left = kLeave; !left.empty();) {
    const ssize_t written = ::write(STDOUT_FILENO, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

/// The crash goes on as if nobody had handled it: the handler was for one signal (SA_RESETHAND).
void restore_and_crash(int signal_number) {
  restore();
  raise(signal_number);
}

void handle_crashes() {
  struct sigaction action {};
  action.sa_handler = restore_and_crash;
  action.sa_flags = SA_RESETHAND;
  for (const int signal_number : kCrashes) sigaction(signal_number, &action, nullptr);
}

}  // namespace

Expected<Terminal> Terminal::take() {
  if (tcgetattr(STDIN_FILENO, &before) != 0)
    return failure(Errc::bad_argument,
                   "standard input is no terminal, so there are no keys; use --plain, with --count "
                   "and --interval");
  handle_crashes();
  Terminal terminal;
  terminal.take_again();
  return terminal;
}

Terminal::Terminal(Terminal&& other) noexcept : is_owner_(std::exchange(other.is_owner_, false)) {}

Terminal::~Terminal() {
  if (is_owner_) give_back();
}

void Terminal::give_back() { restore(); }

void Terminal::take_again() {
  termios raw = before;
  // Ctrl-C and Ctrl-Z stay signals. Without IXON, Ctrl-S does not stop the output for ever.
  raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO | IEXTEN));
  raw.c_iflag &= static_cast<tcflag_t>(~(IXON | ICRNL));
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  is_taken = true;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  (void)write(kEnter);  // if the terminal has gone, the next frame says so
}

Expected<void> Terminal::write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(Errc::peer_died, "the terminal has gone");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

ScreenSize Terminal::size() const { return size_of_terminal(STDOUT_FILENO); }

}  // namespace kvhive
