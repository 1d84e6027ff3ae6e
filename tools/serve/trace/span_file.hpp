#pragma once
// A file that gets a line for each request that has ended. A thread writes, so no request waits for
// a disk; when too many lines wait, further ones are dropped and counted.

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class SpanFile {
 public:
  /// Appends to the file, which is made if there is none (mode 0600). Errors: Errc::bad_argument
  /// names the path: only a regular file makes nobody wait.
  [[nodiscard]] static Expected<std::unique_ptr<SpanFile>> open(const std::string& path);
  /// Writes what waits.
  ~SpanFile();

  /// \param line  without its end
  void write(std::string line);
  /// Waits until all that was written is in the file.
  void flush();
  /// Goes on in a new file of the same name, for whoever has moved the old one away.
  void reopen();

 private:
  static constexpr std::size_t kMostWaiting = 10'000;

  SpanFile(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}
  void put(const std::string& line);

  const std::string path_;
  UniqueFd file_;             ///< of the writer's thread
  bool is_line_cut_ = false;  ///< the file ends in the middle of a line
  std::atomic<std::size_t> waiting_ = 0;
  std::size_t dropped_ = 0;  ///< of the caller's thread
  boost::asio::thread_pool writer_{1};
};

}  // namespace kvhive
