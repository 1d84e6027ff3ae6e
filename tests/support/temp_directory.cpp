#include "tests/support/temp_directory.hpp"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace kvhive {

TempDirectory::TempDirectory() {
  auto pattern = (std::filesystem::temp_directory_path() / "kvhive_test_XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TempDirectory::TempDirectory(const std::filesystem::path& copied) : TempDirectory() {
  std::filesystem::copy(copied, path_, std::filesystem::copy_options::recursive);
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempDirectory::write(const std::string& name, std::string_view content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
}

std::string TempDirectory::read(const std::string& name) const {
  std::ifstream file(path_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kvhive
