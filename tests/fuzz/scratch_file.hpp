#pragma once
// A file that holds the fuzzer's bytes, for readers that want a path.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.hpp"

namespace kvhive::testing {

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name) {
    char directory[] = "/dev/shm/kvhive-fuzz-XXXXXX";
    KV_CHECK(mkdtemp(directory) != nullptr);
    directory_ = directory;
    path_ = directory_ / name;
  }
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_, path_;
};

}  // namespace kvhive::testing
