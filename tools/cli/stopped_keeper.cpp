#include "tools/cli/stopped_keeper.hpp"

#include <fcntl.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ipc/protocol.hpp"
#include "tools/snapshot/process_facts.hpp"

namespace kvhive {
namespace {

namespace fs = std::filesystem;

/// Calls visit(descriptor's path in /proc, what it is open on) for each descriptor of a process.
/// A process that has just ended, or is another user's, has none.
template <class Visit>
void for_each_descriptor(pid_t process, Visit&& visit) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone))
    visit(entry.path(), fs::read_symlink(entry.path(), gone).string());
}

/// The inode of the socket that listens at `path`: /proc/net/unix has one line per socket,
/// "address: references protocol flags type state inode path".
std::optional<std::string> listening_inode(const std::string& path) {
  constexpr const char* kListens = "00010000";  // __SO_ACCEPTCON
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string address, references, protocol, flags, type, state, inode, bound;
    fields >> address >> references >> protocol >> flags >> type >> state >> inode >> bound;
    if (flags == kListens && bound == path) return inode;
  }
  return std::nullopt;
}

}  // namespace

pid_t peer_of(int socket) {
  const auto peer = peer_credentials(socket);
  return peer ? peer->pid : 0;
}

std::optional<pid_t> listener_on(const std::string& path) {
  const auto inode = listening_inode(path);
  if (!inode) return std::nullopt;
  std::optional<pid_t> listener;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    for_each_descriptor(pid, [&](const fs::path&, const std::string& target) {
      if (target == "socket:[" + *inode + "]") listener = pid;
    });
    if (listener) break;
  }
  return listener;
}

pid_t keeper_of(pid_t daemon) {
  const std::string number = std::to_string(daemon);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  for (pid_t child = 0; children >> child;) {
    const auto facts = facts_of(child);  // one that has ended may not have been collected yet
    if (facts && facts->program == "kvhived" && !facts->has_ended()) return child;
  }
  return daemon;
}

PoolFds open_pool_of(pid_t process, Tokens tokens) {
  PoolFds fds;
  for_each_descriptor(process, [&](const fs::path& descriptor, const std::string& target) {
    for (const auto object : {PoolObject::control, PoolObject::metadata, PoolObject::tokens}) {
      if (object == PoolObject::tokens && tokens == Tokens::left_out) continue;
      if (target.find("memfd:" + std::string(name_of(object)) + " ") != std::string::npos)
        fds[std::size_t(object)] = UniqueFd(open(descriptor.c_str(), O_RDONLY | O_CLOEXEC));
    }
  });
  return fds;
}

}  // namespace kvhive
