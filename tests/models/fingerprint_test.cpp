#include "models/fingerprint.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>

#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

/// A file of 3 MiB of weights, a scale, and more weights. The scale is in no 4 KiB that are
/// sampled of the weights.
std::string file_with_scale(float scale) {
  constexpr std::size_t kBefore = std::size_t{3} << 20, kAll = 2 * kBefore + 1'000'000;
  const auto tensor = [](const char* name, const char* dtype, std::size_t begin, std::size_t end) {
    const std::size_t elements = (end - begin) / (std::string(dtype) == "F32" ? 4 : 1);
    return "\"" + std::string(name) + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" +
           std::to_string(elements) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
           std::to_string(end) + "]}";
  };
  const std::string header = "{" + tensor("a", "U8", 0, kBefore) + "," +
                             tensor("k_scale", "F32", kBefore, kBefore + 4) + "," +
                             tensor("z", "U8", kBefore + 4, kAll) + "}";
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header + std::string(kAll, 'w');
  std::memcpy(&file[sizeof length + header.size() + kBefore], &scale, sizeof scale);
  return file;
}

std::uint64_t fingerprint_of(const std::string& config, const std::string& weights) {
  const TempDirectory directory;
  directory.write("config.json", config);
  directory.write("model.safetensors", weights);
  return model_fingerprint(directory.path()).value();
}

TEST(Fingerprint, FollowsContentsAndNotNames) {
  const auto known = fingerprint_of("{}", file_with_scale(1));
  EXPECT_EQ(fingerprint_of("{}", file_with_scale(1)), known);
  EXPECT_NE(fingerprint_of("{ }", file_with_scale(1)), known);
  std::string longer = file_with_scale(1);
  longer += 'w';
  EXPECT_NE(fingerprint_of("{}", longer), known);
}

TEST(Fingerprint, AScaleInALargeFileCounts) {
  EXPECT_NE(fingerprint_of("{}", file_with_scale(2)), fingerprint_of("{}", file_with_scale(1)));
}

TEST(Fingerprint, NoDirectoryIsNotFound) {
  EXPECT_EQ(model_fingerprint("/nonexistent").error().code, Errc::not_found);
}

TEST(Fingerprint, EachArithmeticHasAnother) {
  EXPECT_EQ(with_arithmetic(1, "amx"), with_arithmetic(1, "amx"));
  EXPECT_NE(with_arithmetic(1, "amx"), with_arithmetic(1, "avx2"));
  EXPECT_NE(with_arithmetic(1, "amx"), with_arithmetic(2, "amx"));
}

TEST(Fingerprint, AnAdaptersNameAndBothOfItsFilesCount) {
  const TempDirectory adapter;
  adapter.write("adapter_config.json", "{}");
  adapter.write("adapter_model.safetensors", "weights");
  const auto first = with_adapter(1, "poet", adapter.path()).value();
  EXPECT_EQ(with_adapter(1, "poet", adapter.path()).value(), first);
  EXPECT_NE(with_adapter(2, "poet", adapter.path()).value(), first);
  EXPECT_NE(with_adapter(1, "lawyer", adapter.path()).value(), first);
  adapter.write("adapter_model.safetensors", "weighty");
  EXPECT_NE(with_adapter(1, "poet", adapter.path()).value(), first);
  adapter.write("adapter_model.safetensors", "weights");
  adapter.write("adapter_config.json", "{ }");
  EXPECT_NE(with_adapter(1, "poet", adapter.path()).value(), first);
  EXPECT_FALSE(with_adapter(1, "poet", "/nowhere").has_value());
}

}  // namespace
}  // namespace kvhive
