#pragma once
// Writes the lines of the log in a thread of its own, so that no other thread ever waits for the
// log's reader.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/expected.hpp"

namespace kvhive {

/// A queue of lines and the thread that writes them to a descriptor.
///
/// 1. push() never waits for the descriptor. A line for which the queue has no room is dropped. The
///    number of dropped lines is a line of its own, at the place where they would have been.
/// 2. Each line is one write(), so that processes that share a descriptor do not tear each other's
///    lines.
/// 3. A line that cannot be written (the reader of the pipe is gone, the disk is full) is lost. The
///    number of lost lines is a line of its own before the next line that can be written.
/// 4. flush() and the destructor wait only while lines are being written, or for kPatience.
///
/// \threads  any thread of the process that made it; after fork(), the child must not use it
class LogWriter {
 public:
  /// What a queue holds by default, in bytes.
  static constexpr std::size_t kUsualBytes = std::size_t{1} << 20;
  /// How long flush() waits for a descriptor that takes nothing.
  static constexpr std::chrono::milliseconds kPatience{200};
  /// How long flush() waits at most, for a descriptor that takes lines slowly.
  static constexpr std::chrono::milliseconds kMostPatience{1000};

  enum class Admission : std::uint8_t {
    if_room,  ///< the line is dropped if the queue has no room for it
    always,   ///< for the few lines that say why a process ends
  };
  /// Makes a line of the log, with its end, of a text: adds date, level and name.
  using Format = std::function<std::string(const std::string& text)>;

  /// \param fd     stays open as long as the process; dup2() may replace what it refers to
  /// \param bytes  what the queue and the lines that are just being written have at most
  /// Errors: the system has no thread for it.
  [[nodiscard]] static Expected<std::unique_ptr<LogWriter>> start(int fd, std::size_t bytes,
                                                                  Format format);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Queues a line that has its end ('\n') already.
  void push(std::string_view line, Admission admission = Admission::if_room);
  /// Counts a line that could not even be made.
  void count_dropped();

  /// Waits until all lines that were pushed before are written. False if they are not: the
  /// descriptor took nothing for kPatience, or took lines slowly for kMostPatience.
  bool flush();

 private:
  struct State;
  explicit LogWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Shared with the thread, which outlives this object if it is stuck in its descriptor.
  std::shared_ptr<State> state_;
};

}  // namespace kvhive
