#include "tools/keeper/children/ask_child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// Reads once and appends the bytes to `text`. False at the end of the file or on an error.
bool read_some(int fd, std::string& text) {
  char piece[4096];
  const ssize_t got = read(fd, piece, sizeof piece);
  if (got > 0) text.append(piece, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto start = text.rfind('\n');
  return start == std::string::npos ? text : text.substr(start + 1);
}

}  // namespace

Expected<std::optional<std::string>> ask(Child& child, const Listening& listening,
                                         int standard_input) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return os_failure("pipe");
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return os_failure("pipe");
  UniqueFd err_read(err[0]), err_write(err[1]);
  if (auto started = start_child(child, {standard_input, out_write.get(), err_write.get()});
      !started)
    return forward_error(started);
  out_write = UniqueFd();
  err_write = UniqueFd();

  std::string output, complaints;
  pollfd polled[] = {{out_read.get(), POLLIN, 0},
                     {err_read.get(), POLLIN, 0},
                     {child.pidfd.get(), POLLIN, 0},
                     {listening.stop, POLLIN, 0},
                     {listening.answer, POLLIN, 0}};
  auto& [said, complained, ended, stop, answer] = polled;
  while (said.fd >= 0 || complained.fd >= 0 || ended.fd >= 0) {
    if (poll(polled, std::size(polled), -1) < 0) continue;  // EINTR
    if (stop.revents != 0) {
      kill_by_pidfd(child.pidfd);
      collect(child, Collected::at_once);
      return std::optional<std::string>();
    }
    if (said.revents != 0 && !read_some(said.fd, output)) said.fd = -1;
    if (complained.revents != 0 && !read_some(complained.fd, complaints)) complained.fd = -1;
    if (answer.revents != 0) return output;
    if (ended.revents != 0) ended.fd = -1;
  }
  const std::string end = collect(child, Collected::at_once);
  if (child.last_exit_code == 0) return output;
  if (poll(&stop, 1, 0) > 0)
    return std::optional<std::string>();  // the stop signal was sent to the child, too
  const std::string complaint = last_line(std::move(complaints));
  if (complaint.empty()) return failure(Errc::bad_argument, child.program + " ended with " + end);
  // kvhived puts its own name in front of the error, so the child's name is cut off.
  const std::string prefix = child.program + ": ";
  return failure(Errc::bad_argument,
                 complaint.rfind(prefix, 0) == 0 ? complaint.substr(prefix.size()) : complaint);
}

}  // namespace kvhive
