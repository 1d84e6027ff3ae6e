#include "tools/serve/trace/span_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cstring>

#include "base/log.hpp"

namespace kvhive {

Expected<std::unique_ptr<SpanFile>> SpanFile::open(const std::string& path) {
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
  return std::unique_ptr<SpanFile>(new SpanFile(std::move(file)));
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
    // One call for a line: several services may append to one file.
    if (::write(file_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      spdlog::warn("a span could not be written: {}", std::strerror(errno));
    --waiting_;
  });
}

}  // namespace kvhive
