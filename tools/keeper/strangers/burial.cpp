#include "tools/keeper/strangers/burial.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/log.hpp"

namespace kvhive {
namespace {

/// So many processes hold connections at a time. If all of them hang, further connections stay open
/// in the keeper until one of them ends.
constexpr std::size_t kMostProcesses = 8;

}  // namespace

Burial::~Burial() {
  for (UniqueFd& socket : waiting_) (void)socket.release();  // see ~Connections()
}

void Burial::bury(UniqueFd socket) {
  waiting_.push_back(std::move(socket));
  start();
}

/// The process waits until the keeper has closed its own descriptors, so that its own are the last.
void Burial::start() {
  if (waiting_.empty() || processes_.count() >= kMostProcesses) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // the connections wait for the next call
  const UniqueFd until_closed(ends[0]), keepers_end(ends[1]);
  std::vector<int> kept = {until_closed.get()};
  for (const UniqueFd& socket : waiting_) kept.push_back(socket.get());
  const auto wait = [&] {
    char nothing;
    return read(until_closed.get(), &nothing, 1) == 0 ? 0 : 1;
  };
  if (auto started = processes_.start(std::move(kept), wait, [this](int) { start(); }); !started)
    return spdlog::error("{}", started.error().text);
  waiting_.clear();
}

}  // namespace kvhive
