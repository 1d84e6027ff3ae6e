// kvhive top: the hive, live. Views are made in tools/top/; here is what waits: for keys, for the
// next frame, for signals.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "base/loop/event_loop.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/daemon_view.hpp"
#include "tools/cli/hive_watch.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/program/output.hpp"
#include "tools/program/program.hpp"
#include "tools/program/signals.hpp"
#include "tools/screen/paint.hpp"
#include "tools/screen/terminal.hpp"
#include "tools/top/view.hpp"

namespace kvhive {
namespace {

struct TopFlags {
  CommonFlags common;
  double interval = 1;
  std::uint64_t count = 0;
  bool is_plain = false;
  MapBy by = MapBy::state;
};

/// The last two snapshots, and what happened between them.
class Readings {
 public:
  explicit Readings(const HiveWatch& watch) : watch_(watch) {}

  void read(MapBy by) {
    const HiveWatch::News news = watch_.news();
    Snapshot next = snapshot_of(news);
    next.blocks = sort_blocks(news.hive->memory(), by, next.names);
    if (has_snapshot_) rates_ = rates_between(snapshot_, next);
    snapshot_ = std::move(next);
    has_snapshot_ = true;
  }
  TopView view(const TopSettings& settings) const {
    return {snapshot_, rates_, settings, seconds_now()};
  }

 private:
  const HiveWatch& watch_;
  bool has_snapshot_ = false;
  Snapshot snapshot_;
  Rates rates_;
};

/// The whole screen, with keys.
class LiveTop {
 public:
  LiveTop(const HiveWatch& watch, EventLoop loop, Terminal terminal, UniqueFd signals,
          const TopFlags& flags)
      : loop_(std::move(loop)),
        terminal_(std::move(terminal)),
        signals_(std::move(signals)),
        frames_left_(flags.count),
        style_(style_of_environment(true)),
        readings_(watch) {
    settings_.interval = flags.interval;
    settings_.by = flags.by;
  }

  /// The signal that ended it; 0 = the user did.
  int run() {
    loop_.watch(STDIN_FILENO, [this] { read_keys(); });
    loop_.watch(signals_.get(), [this] { read_signal(); });
    read_again();
    loop_.run();
    return ended_by_;
  }

 private:
  /// A snapshot now, and the next one an interval later.
  void read_again() {
    if (!settings_.is_paused) {
      readings_.read(settings_.by);
      if (frames_left_ != 0 && --frames_left_ == 0) loop_.stop();
    }
    draw();
    // Timers cannot be taken back: an earlier one finds that it is not the last.
    const std::uint64_t turn = ++turn_;
    loop_.after(std::chrono::nanoseconds(static_cast<std::int64_t>(settings_.interval * 1e9)),
                [this, turn] {
                  if (turn == turn_) read_again();
                });
  }

  void draw() {
    const Frame frame = draw_top(readings_.view(settings_), terminal_.size(), style_);
    if (!terminal_.write(repainted(shown_ ? &*shown_ : nullptr, frame, style_.colours)))
      loop_.stop();
    shown_ = frame;
  }

  void read_keys() {
    char bytes[256];
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    if (got <= 0) return loop_.stop();  // the terminal has gone
    for (const Key key : keys_in({bytes, static_cast<std::size_t>(got)})) {
      switch (apply(key, settings_, rows_of_pane(readings_.view(settings_)))) {
        case TopAction::quit: return loop_.stop();
        case TopAction::read_again: read_again(); break;
        case TopAction::redraw: draw(); break;
      }
    }
  }

  void read_signal() {
    switch (const int signal = next_signal(signals_.get())) {
      case 0: break;
      case SIGWINCH: draw(); break;
      case SIGTSTP: stop_and_go_on(); break;
      case SIGCONT:  // after a SIGSTOP, of which nobody is told: the screen may be any program's
        terminal_.take_again();
        shown_.reset();
        draw();
        break;
      case SIGINT: loop_.stop(); break;
      default: ended_by_ = signal; loop_.stop();
    }
  }

  /// As if nobody had handled SIGTSTP; returns when the process goes on.
  void stop_and_go_on() {
    terminal_.give_back();
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // here it stops
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
    terminal_.take_again();
    shown_.reset();
    draw();
  }

  EventLoop loop_;
  Terminal terminal_;
  UniqueFd signals_;
  std::uint64_t frames_left_;  ///< 0 = no limit
  OutputStyle style_;
  TopSettings settings_;
  Readings readings_;
  std::optional<Frame> shown_;
  std::uint64_t turn_ = 0;
  int ended_by_ = 0;
};

/// Ends as the signal would have ended the program.
[[noreturn]] void end_by(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  signal(number, SIG_DFL);
  raise(number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  _exit(128 + number);
}

constexpr std::chrono::milliseconds kTopPause{500};

Expected<int> live(const TopFlags& flags) {
  auto signals =  // no handler draws
      signals_as_descriptor({SIGWINCH, SIGTSTP, SIGCONT, SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  if (!signals) return forward_error(signals);
  auto watch = HiveWatch::start(flags.common.socket_path(), kTopPause);
  if (!watch) return forward_error(watch);
  auto loop = EventLoop::create(EventLoop::Escape::leaves_run);
  if (!loop) return forward_error(loop);
  (*watch)->wait_for_first_answer(kTopPause);
  auto terminal = Terminal::take();
  if (!terminal) return forward_error(terminal);
  int ended_by = 0;
  {
    LiveTop top(**watch, std::move(*loop), std::move(*terminal), std::move(*signals), flags);
    ended_by = top.run();
  }  // the terminal is given back here, before anything is waited for
  if (ended_by != 0) end_by(ended_by);
  return 0;
}

/// Frames one below the other, for pipes, files and terminals that cannot move their cursor.
Expected<int> plain(const TopFlags& flags) {
  const auto watch = HiveWatch::start(flags.common.socket_path(), kTopPause);
  if (!watch) return forward_error(watch);
  (*watch)->wait_for_first_answer(2 * kTopPause);
  const OutputStyle style = style_of_environment(isatty(STDOUT_FILENO) != 0);
  TopSettings settings;
  settings.by = flags.by;
  Readings readings(**watch);
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(flags.count, 1); ++i) {
    if (i != 0) std::this_thread::sleep_for(std::chrono::duration<double>(flags.interval));
    readings.read(settings.by);
    const Frame frame =
        draw_plain(readings.view(settings), size_of_terminal(STDOUT_FILENO).width, style);
    std::printf("%s%s", i == 0 ? "" : "\n", printed(frame, style.colours).c_str());
    if (auto done = flush_output(); !done) {
      if (done.error().code == Errc::peer_died) return kExitPipeClosed;
      return forward_error(done);
    }
  }
  return 0;
}

Expected<int> top(const TopFlags& flags) {
  if (flags.common.output() == Format::json)
    return failure(Errc::unsupported,
                   "top prints no JSON; use kvhive pool stat, procs or map with --format json");
  const bool is_plain = flags.is_plain || isatty(STDOUT_FILENO) == 0 || is_dumb_terminal();
  return is_plain ? plain(flags) : live(flags);
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* command = app.add_subcommand(
      "top", "the hive, live: engines, domains, clients, and the pool as a map; ? lists the keys");
  flags->common.add_socket_to(*command);
  command->add_option("--interval", flags->interval, "time between two frames")
      ->type_name("SECONDS")
      ->check(CLI::Range(kLeastInterval, kMostInterval))
      ->capture_default_str();
  command
      ->add_option("--count", flags->count,
                   "ends after so many frames; 0 = never, or after one where output is plain")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--plain", flags->is_plain,
                    "frames one below the other, without keys: as where standard output is no "
                    "terminal");
  add_choice<MapBy>(*command, "--by", flags->by, "what the map shows of a block")
      ->default_str("state");
  command->callback([flags, &exit_code] {
    const auto code = top(*flags);
    exit_code = code ? *code : fail(code.error());
  });
}

}  // namespace kvhive
