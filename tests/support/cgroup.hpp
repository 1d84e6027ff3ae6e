#pragma once
// A real memory cgroup with a limit. Needs root, and a system that allows new cgroups.

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace kvhive::testing {

class MemoryCgroup {
 public:
  /// Makes the cgroup below this process's cgroup, else at the top. Nothing if neither is allowed.
  static std::optional<MemoryCgroup> make(std::size_t bytes) {
    namespace fs = std::filesystem;
    for (const auto& [top, limit, wanted] :
         {Place{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory"},
          Place{"/sys/fs/cgroup", "memory.max", ""}}) {
      for (const std::string& ours : {cgroup_of_ours(wanted), std::string()}) {
        MemoryCgroup group;
        group.path_ = top + ours + "/kvhive-test-" + std::to_string(getpid());
        std::error_code failed;
        if (!fs::exists(top + ours + "/cgroup.procs", failed) ||
            !fs::create_directory(group.path_, failed))
          continue;
        std::ofstream file(group.path_ + "/" + limit);
        if (file << bytes << std::flush) return group;
      }
    }
    return std::nullopt;
  }

  MemoryCgroup(MemoryCgroup&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  MemoryCgroup& operator=(MemoryCgroup&&) = delete;
  ~MemoryCgroup() {
    // Processes of the cgroup may still be ending. Waits for up to a minute, which would be a hang.
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!path_.empty() && rmdir(path_.c_str()) != 0 && errno == EBUSY &&
           std::chrono::steady_clock::now() < end) {
    }
  }

  /// Called in a forked child before execv().
  void enter() const {
    std::ofstream procs(path_ + "/cgroup.procs");
    if (!(procs << getpid() << std::flush)) _exit(126);
  }
  std::string name() const { return std::filesystem::path(path_).filename(); }

 private:
  struct Place {
    std::string top, limit, controller;
  };
  MemoryCgroup() = default;

  /// This process's cgroup. Parses lines like "4:memory:/a/b" and, for version 2, "0::/a/b".
  static std::string cgroup_of_ours(const std::string& controller) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);)
      if (const auto at = line.find(":" + controller + ":"); at != std::string::npos)
        return line.substr(at + controller.size() + 2);
    return {};
  }

  std::string path_;
};

}  // namespace kvhive::testing
