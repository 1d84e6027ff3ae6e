#include "base/memory/mapped_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/mapping_flags.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

TEST(MappedFile, AsksForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    GTEST_SKIP() << "this kernel makes none";
  const TempDirectory directory;
  directory.write("weights", "bytes");
  const auto file = MappedFile::open(directory.path() / "weights");
  ASSERT_TRUE(file.has_value()) << file.error().text;
  EXPECT_THAT(flags_of_mapping(file->bytes().data()), HasSubstr(" hg "));
}

}  // namespace
}  // namespace kvhive::testing
