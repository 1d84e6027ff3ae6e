#include "base/logging/log_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/logging/patient_write.hpp"
#include "base/loop/signals_blocked.hpp"

namespace kvhive {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the thread waits for room before it looks at its descriptor again, which may refer to
/// another file by then.
constexpr std::chrono::milliseconds kLookAgain{1000};

struct Lines {
  std::string text;
  std::vector<std::size_t> lengths;  ///< of each line; a line may have line ends inside

  void add(std::string_view line) {
    lengths.push_back(line.size());
    text += line;
  }
  void clear() {
    text.clear();
    lengths.clear();
  }
};

std::string count_of_lines(std::uint64_t count, const char* what) {
  return std::to_string(count) + (count == 1 ? " log line was " : " log lines were ") + what;
}

}  // namespace

struct LogWriter::State {
  State(int descriptor, std::size_t bytes, Format own_line)
      : fd(descriptor), most_bytes(bytes / 2), format(std::move(own_line)) {
    // Here rather than as they grow: push() should not fail for want of memory.
    for (Lines* lines : {&queue, &taken}) lines->text.reserve(most_bytes);
  }

  void push(std::string_view line, Admission admission);
  void queue_line(std::string_view line);
  void queue_count_of_dropped();
  bool flush();
  void run();
  bool take();
  void write(std::string_view line);
  int write_whole(std::string_view line);

  const int fd;
  const std::size_t most_bytes;  ///< of the queue; what is being written has as many at most
  const Format format;
  const pid_t process = getpid();

  std::mutex mutex;
  std::condition_variable news;      ///< for the thread: there are lines, or it shall stop
  std::condition_variable progress;  ///< for flush(): the thread has done a line, or has ended
  Lines queue;
  std::uint64_t queued = 0, done = 0;              ///< lines; a line that is lost is done, too
  std::uint64_t dropped = 0;                       ///< since the last line that said how many
  std::optional<Clock::time_point> writing_since;  ///< the line that the thread is writing
  bool stops = false, has_ended = false;

  // The thread's own.
  Lines taken;
  std::uint64_t lost = 0;  ///< lines that could not be written, since the last one that could
  int loss = 0;            ///< errno of the last of them
  bool is_torn = false;    ///< a part of the last of them was written
};

// -- callers --------------------------------------------------------------------------------------

/// Once a line was dropped, all further ones are until the thread takes the whole queue: then one
/// line can say how many they were.
void LogWriter::State::push(std::string_view line, Admission admission) {
  const std::lock_guard lock(mutex);
  const bool has_room = dropped == 0 && queue.text.size() + line.size() <= most_bytes;
  if (admission == Admission::if_room && !has_room) {
    ++dropped;
  } else {
    queue_count_of_dropped();
    queue_line(line);
  }
  news.notify_one();
}

void LogWriter::State::queue_line(std::string_view line) {
  queue.add(line);
  ++queued;
}

void LogWriter::State::queue_count_of_dropped() {
  if (dropped == 0) return;
  queue_line(format(count_of_lines(dropped, "dropped: standard error was not read fast enough")));
  dropped = 0;
}

bool LogWriter::State::flush() {
  if (getpid() != process) return false;  // a forked child has no such thread
  std::unique_lock lock(mutex);
  const std::uint64_t target = queued;
  const Clock::time_point end = Clock::now() + kMostPatience;
  while (done < target || dropped != 0) {
    // The thread may not have begun, on a busy machine: that is no sign of a stuck descriptor.
    const Clock::time_point limit = writing_since ? std::min(end, *writing_since + kPatience) : end;
    if (Clock::now() >= limit) return false;
    progress.wait_until(lock, writing_since ? limit : std::min(end, Clock::now() + kPatience));
  }
  return true;
}

// -- the thread -----------------------------------------------------------------------------------

void LogWriter::State::run() {
  while (take()) {
    std::string_view rest = taken.text;
    for (const std::size_t length : taken.lengths) {
      const std::string_view line = rest.substr(0, length);
      write(line);
      rest.remove_prefix(line.size());
    }
  }
}

/// Waits for lines and takes them. False = the thread shall end.
bool LogWriter::State::take() {
  std::unique_lock lock(mutex);
  news.wait(lock, [this] { return !queue.lengths.empty() || dropped != 0 || stops; });
  taken.clear();
  std::swap(taken, queue);
  queue_count_of_dropped();
  if (!taken.lengths.empty() || !queue.lengths.empty()) return true;
  has_ended = true;
  progress.notify_all();
  return false;
}

void LogWriter::State::write(std::string_view line) {
  std::string count_of_lost;
  {
    const std::lock_guard lock(mutex);
    writing_since = Clock::now();
    if (lost != 0)
      count_of_lost = (is_torn ? "\n" : "") + format(count_of_lines(lost, "lost: write the log: ") +
                                                     std::generic_category().message(loss));
  }
  if (lost != 0 && write_whole(count_of_lost) == 0) {
    lost = 0;
    is_torn = false;
  }
  if (lost != 0 || (loss = write_whole(line)) != 0) ++lost;
  const std::lock_guard lock(mutex);
  writing_since.reset();
  ++done;
  progress.notify_all();
}

/// Waits for room as long as it takes. Returns 0 or errno.
int LogWriter::State::write_whole(std::string_view line) {
  PatientlyWritten written;
  std::size_t bytes = 0;
  do {
    written = write_patiently(fd, line.substr(bytes), kLookAgain);
    bytes += written.bytes;
  } while (written.error == ETIMEDOUT);
  if (written.error != 0) is_torn = bytes != 0 || is_torn;
  return written.error;
}

// -- the object -----------------------------------------------------------------------------------

Expected<std::unique_ptr<LogWriter>> LogWriter::start(int fd, std::size_t bytes, Format format) {
  auto state = std::make_shared<State>(fd, bytes, std::move(format));
  try {
    const SignalsBlocked blocked;
    std::thread([state] { state->run(); }).detach();
  } catch (const std::system_error& error) {
    return failure(Errc::os_error, std::string("no thread for the log: ") + error.what() +
                                       "; raise the limit of processes (ulimit -u) or of address "
                                       "space (ulimit -v)");
  }
  return std::unique_ptr<LogWriter>(new LogWriter(std::move(state)));
}

LogWriter::~LogWriter() {
  const bool is_written = flush();
  std::unique_lock lock(state_->mutex);
  state_->stops = true;
  state_->news.notify_one();
  if (is_written) state_->progress.wait(lock, [this] { return state_->has_ended; });
}

void LogWriter::push(std::string_view line, Admission admission) { state_->push(line, admission); }

void LogWriter::count_dropped() {
  const std::lock_guard lock(state_->mutex);
  ++state_->dropped;
  state_->news.notify_one();
}

bool LogWriter::flush() { return state_->flush(); }

}  // namespace kvhive
