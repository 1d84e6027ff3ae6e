#include "tests/tools/footprint.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvhive::testing {
namespace {

namespace fs = std::filesystem;

/// Files of a directory that may vanish while it is read.
std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code gone;
  for (fs::directory_iterator at(directory, gone), end; !gone && at != end; at.increment(gone))
    entries.push_back(at->path());
  return entries;
}

fs::path proc(pid_t pid) { return "/proc/" + std::to_string(pid); }

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  for (const fs::path& entry : entries_of("/proc"))
    if (const std::string name = entry.filename();
        name.find_first_not_of("0123456789") == std::string::npos)
      pids.push_back(std::stoi(name));
  return pids;
}

bool has_mapped(pid_t pid, const std::set<ino_t>& objects) {
  std::ifstream maps(proc(pid) / "maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:kvhive-") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, rights, offset, device;
    ino_t inode = 0;
    words >> range >> rights >> offset >> device >> inode;
    if (objects.count(inode) != 0) return true;
  }
  return false;
}

}  // namespace

std::size_t descriptors_of(pid_t pid) { return entries_of(proc(pid) / "fd").size(); }

std::set<ino_t> memory_objects_of(pid_t pid, const std::string& kind) {
  std::set<ino_t> inodes;
  for (const fs::path& entry : entries_of(proc(pid) / "fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry, gone).string();
    struct stat status {};
    if (target.find("memfd:kvhive-" + kind) != std::string::npos &&
        stat(entry.c_str(), &status) == 0)
      inodes.insert(status.st_ino);
  }
  return inodes;
}

bool has_memory_object(pid_t pid, const std::string& kind) {
  std::ifstream maps(proc(pid) / "maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:kvhive-" + kind) != std::string::npos) return true;
  return !memory_objects_of(pid, kind).empty();
}

std::vector<pid_t> holders_of(const std::set<ino_t>& objects) {
  std::vector<pid_t> holders;
  for (const pid_t pid : all_processes()) {
    const std::set<ino_t> open = memory_objects_of(pid);
    const bool has_open = std::any_of(open.begin(), open.end(),
                                      [&](ino_t inode) { return objects.count(inode) != 0; });
    if (has_open || has_mapped(pid, objects)) holders.push_back(pid);
  }
  return holders;
}

std::size_t memory_of(pid_t pid, const std::string& row) {
  std::ifstream status(proc(pid) / "status");
  std::size_t kib = 0;
  for (std::string word; status >> word;)
    if (word == row + ":") status >> kib;
  return kib * 1024;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const pid_t pid : all_processes()) {
    std::ifstream stat(proc(pid) / "stat");
    std::string line;
    if (!std::getline(stat, line)) continue;
    pid_t its_parent = 0;
    const std::size_t name_end = line.rfind(')');
    if (name_end != std::string::npos &&
        std::sscanf(line.c_str() + name_end, ") %*c %d", &its_parent) == 1 && its_parent == parent)
      children.push_back(pid);
  }
  return children;
}

std::set<std::string> named_shared_memory() {
  std::set<std::string> names;
  for (const fs::path& entry : entries_of("/dev/shm")) names.insert(entry.filename());
  return names;
}

}  // namespace kvhive::testing
