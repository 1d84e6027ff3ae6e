#include "tools/keeper/channels/page_pins.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/memory/memory_object.hpp"
#include "base/round_up.hpp"

namespace kvhive {
namespace {

/// Only who writes to a pipe needs its other end.
UniqueFd writing_end_of(const UniqueFd& pipe) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", pipe.get());
  return UniqueFd(open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK));
}

int pin_mapped(const std::vector<UniqueFd>& pipes, std::byte* map, std::size_t bytes) {
  auto pipe = pipes.begin();
  UniqueFd writer = writing_end_of(*pipe);
  for (std::size_t at = 0; at < bytes; at += kHugePage) {
    const iovec byte{map + at, 1};
    while (vmsplice(writer.get(), &byte, 1, SPLICE_F_NONBLOCK) != 1) {
      if (errno != EAGAIN) return errno;
      if (++pipe == pipes.end()) return ENOSPC;
      writer = writing_end_of(*pipe);
    }
  }
  return 0;
}

}  // namespace

Expected<std::vector<UniqueFd>> make_pin_pipes(std::size_t files, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kMost = 256, kMostPipes = 7;  // in one packet, with a file
  std::vector<UniqueFd> readers;
  std::size_t left = files * (round_up(bytes, kHugePage) / kHugePage);
  while (left > 0) {
    int ends[2];
    if (readers.size() == kMostPipes)
      return failure(Errc::out_of_memory,
                     "the daemon's user has reached its limit of pipe memory "
                     "(fs.pipe-user-pages-soft); raise it, or give the daemon a user of its own");
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return os_failure("pipe2");
    readers.emplace_back(ends[0]);
    const UniqueFd writer(ends[1]);
    // If the system refuses, there is room for one page at least, and there will be a few more
    // pipes.
    const int got = fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(std::min(left, kMost) * kPage));
    left -= got > 0 ? std::min(left, static_cast<std::size_t>(got) / kPage) : 1;
  }
  return readers;
}

/// Takes the pages from a mapping, not from the file (splice()): then the page fault that makes a
/// page and the reference to it are one step. Between two, a hostile client can take the page out
/// of the file again, and a hole would be pinned.
int pin_pages(const std::vector<UniqueFd>& pipes, int file, std::size_t bytes) {
  void* const map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) return errno;
  const int error = madvise(map, bytes, MADV_DONTDUMP) != 0
                        ? errno
                        : pin_mapped(pipes, static_cast<std::byte*>(map), bytes);
  munmap(map, bytes);
  return error;
}

}  // namespace kvhive
