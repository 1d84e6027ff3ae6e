#include "tools/keeper/channels/page_pins.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace kvhive {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Pipe {
  UniqueFd reader, writer;
};

/// A pipe for as many pages as the system allows, 256 at most.
Expected<Pipe> make_pipe(std::size_t pages) {
  constexpr std::size_t kUsual = 16, kMost = 256;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return os_failure("pipe2");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // If the system refuses, there will be more pipes.
  if (pages > kUsual)
    (void)fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(std::min(pages, kMost) * 4096));
  return pipe;
}

}  // namespace

Expected<std::vector<UniqueFd>> pin_pages(const UniqueFd& file, std::size_t written,
                                          std::size_t bytes) {
  std::vector<UniqueFd> readers;
  UniqueFd writer;  ///< of the pipe that has room
  for (std::size_t at = 0; at < bytes; at += kHugePage) {
    // A page that was allocated and never written is none yet, of which a pipe could have a part.
    if (at >= written && pwrite(file.get(), "", 1, static_cast<off_t>(at)) != 1)
      return os_failure("write to a channel's memory");
    for (bool is_full = !writer;; is_full = true) {
      if (is_full) {
        auto made = make_pipe((bytes - at + kHugePage - 1) / kHugePage);
        if (!made) return forward_error(made);
        writer = std::move(made->writer);
        readers.push_back(std::move(made->reader));
      }
      loff_t from = static_cast<loff_t>(at);
      if (splice(file.get(), &from, writer.get(), nullptr, 1, SPLICE_F_NONBLOCK) == 1) break;
      if (errno != EAGAIN || is_full) return os_failure("splice a channel's memory");
    }
  }
  return readers;
}

}  // namespace kvhive
