#include "tools/serve/trace/span_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cstring>
#include <future>

#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "base/loop/signals_blocked.hpp"

namespace kvhive {

namespace {

Expected<UniqueFd> open_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(),
                       O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
  const auto cannot = [&](const std::string& why) {
    return failure(Errc::bad_argument,
                   "--trace-file '" + path + "': " + why + "; give a file that may be written");
  };
  if (!file) return cannot(std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return cannot(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return cannot("is no regular file");
  return file;
}

}  // namespace

Expected<std::unique_ptr<SpanFile>> SpanFile::open(const std::string& path) {
  auto file = open_file(path);
  if (!file) return forward_error(file);
  const SignalsBlocked signals_are_for_the_loop;
  return std::unique_ptr<SpanFile>(new SpanFile(path, std::move(*file)));
}

SpanFile::~SpanFile() { writer_.join(); }

void SpanFile::write(std::string line) {
  if (waiting_.load() >= kMostWaiting) {
    if (dropped_++ % kMostWaiting == 0)
      spdlog::warn("the trace file is written too slowly: {} spans were dropped", dropped_);
    return;
  }
  ++waiting_;
  boost::asio::post(writer_, [this, line = std::move(line) + "\n"] {
    put(line);
    --waiting_;
  });
}

void SpanFile::flush() {
  std::promise<void> done;
  boost::asio::post(writer_, [&] { done.set_value(); });
  done.get_future().wait();
}

/// One call for a line: several services may append to one file. Of a line that found no room its
/// beginning may be there; the next one does not go on behind it.
void SpanFile::put(const std::string& line) {
  const std::string whole = (is_line_cut_ ? "\n" : "") + line;
  const ssize_t written = ::write(file_.get(), whole.data(), whole.size());
  if (written == static_cast<ssize_t>(whole.size())) {
    is_line_cut_ = false;
    return;
  }
  is_line_cut_ |= written > 0;
  static LogLimit lost;
  if (const auto note = lost.admit())
    spdlog::warn("a span could not be written: {}{}",
                 written < 0 ? std::strerror(errno) : "no room for all of it", *note);
}

void SpanFile::reopen() {
  boost::asio::post(writer_, [this] {
    auto next = open_file(path_);
    if (!next) return spdlog::warn("{}; spans go on into the old file", next.error().text);
    file_ = std::move(*next);
    struct stat status {};  // it may be the same file
    is_line_cut_ &= fstat(file_.get(), &status) != 0 || status.st_size != 0;
  });
}

}  // namespace kvhive
