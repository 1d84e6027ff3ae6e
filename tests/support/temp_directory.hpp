#pragma once
// A temporary directory for one test that writes files.

#include <filesystem>
#include <string>
#include <string_view>

namespace kvhive {

/// Created empty, or as a copy; removed with everything in it.
class TempDirectory {
 public:
  TempDirectory();
  explicit TempDirectory(const std::filesystem::path& copied);
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const;
  std::string read(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

}  // namespace kvhive
