#include "models/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/json_file.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// A file image in its own heap block, so that a sanitizer sees reads beyond it.
std::vector<std::byte> image(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = std::byte(i);
  return file;
}

json two_tensors() {
  return {{"__metadata__", {{"format", "pt"}}},
          {"a", {{"dtype", "F32"}, {"shape", {2, 2}}, {"data_offsets", {0, 16}}}},
          {"b", {{"dtype", "BF16"}, {"shape", {3}}, {"data_offsets", {16, 22}}}}};
}

std::string error_of(const json& header, std::size_t data_bytes = 22) {
  const auto file = image(header.dump(), data_bytes);
  const auto parsed = parse_safetensors(file, "m.safetensors");
  return parsed ? "no error" : parsed.error().text;
}

TEST(Safetensors, ReadsTensorsInPlace) {
  const auto file = image(two_tensors().dump(), 22);
  const auto tensors = parse_safetensors(file, "m.safetensors").value();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(tensors.at("b").dtype, "BF16");
  EXPECT_EQ(tensors.at("b").bytes.data(), file.data() + file.size() - 6);
}

TEST(Safetensors, ScalarsAndEmptyTensorsAreFine) {
  const json header{{"s", {{"dtype", "I64"}, {"shape", json::array()}, {"data_offsets", {0, 8}}}},
                    {"e", {{"dtype", "F32"}, {"shape", {0, 7}}, {"data_offsets", {8, 8}}}}};
  const auto file = image(header.dump() + "   ", 8);  // writers pad the header with spaces
  EXPECT_TRUE(parse_safetensors(file, "m"));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const auto file = image(two_tensors().dump(), 22);
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    const std::vector<std::byte> cut(file.begin(), file.begin() + bytes);
    const auto parsed = parse_safetensors(cut, "m.safetensors");
    ASSERT_FALSE(parsed) << bytes;
    EXPECT_THAT(parsed.error().text, HasSubstr("m.safetensors"));
  }
}

TEST(Safetensors, ATruncatedFileNamesTensorAndSizes) {
  const auto text = error_of(two_tensors(), 20);
  EXPECT_THAT(text, HasSubstr("tensor \"b\""));
  EXPECT_THAT(text, HasSubstr("22"));
  EXPECT_THAT(text, HasSubstr("20"));
}

TEST(Safetensors, EveryFlippedByteIsAnErrorOrHarmless) {
  const auto file = image(two_tensors().dump(), 22);
  for (std::size_t at = 0; at < file.size() - 22; ++at)
    for (const int flip : {0x01, 0x10, 0x80, 0xFF}) {
      auto broken = file;
      broken[at] ^= std::byte(flip);
      const auto parsed = parse_safetensors(broken, "m");
      if (!parsed) continue;
      for (const auto& [name, entry] : *parsed)
        ASSERT_TRUE(entry.bytes.data() >= broken.data() &&
                    entry.bytes.data() + entry.bytes.size() <= broken.data() + broken.size());
    }
}

TEST(Safetensors, EveryIllTypedFieldIsAnError) {
  const std::vector<json> odd{nullptr,
                              true,
                              -1,
                              1.5,
                              "x",
                              json::array(),
                              json::object(),
                              1e300,
                              UINT64_MAX,
                              json::array({-1, 2}),
                              json::array({0, UINT64_MAX}),
                              json::array({1, 2, 3}),
                              json::array({"0", "16"}),
                              json::array({16, 0})};
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    for (const auto& value : odd) {
      auto header = two_tensors();
      header["a"][field] = value;
      EXPECT_NE(error_of(header), "no error") << field << " " << value;
    }
    auto header = two_tensors();
    header["a"].erase(field);
    EXPECT_THAT(error_of(header), HasSubstr(field));
  }
  for (const auto& value : odd) {
    auto header = two_tensors();
    header["a"] = value;
    EXPECT_NE(error_of(header), "no error") << value;
  }
}

TEST(Safetensors, SizesMustAgree) {
  auto header = two_tensors();
  header["a"]["shape"] = {2, 3};
  EXPECT_THAT(error_of(header), HasSubstr("needs 24 bytes, data_offsets give 16"));
  header["a"]["shape"] = {std::uint64_t{1} << 62, 4};  // the product overflows
  EXPECT_NE(error_of(header), "no error");
}

TEST(Safetensors, OverlapsAndHolesAreRefused) {
  auto overlap = two_tensors();
  overlap["b"]["data_offsets"] = {10, 16};
  EXPECT_THAT(error_of(overlap, 16), HasSubstr("overlap"));
  auto hole = two_tensors();
  hole["b"]["data_offsets"] = {18, 24};
  EXPECT_THAT(error_of(hole, 24), HasSubstr("hole at byte 16"));
  EXPECT_THAT(error_of(two_tensors(), 23), HasSubstr("22 of 23"));
}

TEST(Safetensors, HostileHeadersAreErrors) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const std::string& header :
       {std::string(), std::string("[]"), std::string("{\"a\": "), deep,
        "{\"a\": {\"dtype\": " + deep + "}}", std::string("{\"a\xff\": 1}"), std::string("null")})
    EXPECT_FALSE(parse_safetensors(image(header, 4), "m"));
  auto file = image("{}", 0);
  for (const std::uint64_t length : {UINT64_MAX, std::uint64_t{3}, std::uint64_t{1} << 63}) {
    std::memcpy(file.data(), &length, 8);
    const auto parsed = parse_safetensors(file, "m");
    ASSERT_FALSE(parsed);
    EXPECT_THAT(parsed.error().text, HasSubstr(std::to_string(length)));
  }
}

void write_file(const TempDirectory& directory, const std::string& name,
                const std::vector<std::byte>& file) {
  directory.write(name, {reinterpret_cast<const char*>(file.data()), file.size()});
}

TEST(SafetensorsDirectory, FindsByNameShapeAndDtype) {
  const TempDirectory directory;
  auto header = two_tensors();
  header["i"] = {{"dtype", "I32"}, {"shape", {1}}, {"data_offsets", {22, 26}}};
  write_file(directory, "model.safetensors", image(header.dump(), 26));
  const auto opened = SafetensorsDirectory::open(directory.path()).value();
  const std::vector<std::int64_t> shape{2, 2}, one{1};
  EXPECT_EQ(opened.find("a", shape)->dtype, Dtype::f32);
  EXPECT_EQ(opened.find("nope", shape).error().code, Errc::not_found);
  EXPECT_THAT(opened.find("b", shape).error().text,
              HasSubstr("tensor b has shape [3], expected [2, 2]"));
  EXPECT_THAT(opened.find("i", one).error().text, HasSubstr("I32"));
}

/// Of a model that takes images, too, and of its adapters.
TEST(SafetensorsDirectory, ATextPartsTensorsHaveTheNamesOfAModelOfText) {
  const TempDirectory directory;
  const auto write_names = [&](const std::string& file, const std::string& a,
                               const std::string& b) {
    json header = two_tensors();
    header[a] = header["a"];
    header[b] = header["b"];
    header.erase("a");
    header.erase("b");
    write_file(directory, file, image(header.dump(), 22));
  };
  write_names("model.safetensors", "language_model.model.a", "model.language_model.b");
  const auto model = SafetensorsDirectory::open(directory.path()).value();
  EXPECT_EQ(model.names(), (std::vector<std::string>{"model.a", "model.b"}));
  write_names("adapter.safetensors", "base_model.model.language_model.model.a",
              "base_model.model.model.language_model.b");
  const auto adapter =
      SafetensorsDirectory::open_file(directory.path() / "adapter.safetensors").value();
  EXPECT_EQ(adapter.names(),
            (std::vector<std::string>{"base_model.model.model.a", "base_model.model.model.b"}));
}

TEST(SafetensorsDirectory, MissingAndEmptyFilesAreNamed) {
  const TempDirectory directory;
  EXPECT_EQ(SafetensorsDirectory::open(directory.path()).error().code, Errc::not_found);
  directory.write("model.safetensors", "");
  EXPECT_THAT(SafetensorsDirectory::open(directory.path()).error().text, HasSubstr("0 bytes"));
  std::filesystem::remove(directory.path() / "model.safetensors");
  std::filesystem::create_directory(directory.path() / "model.safetensors");
  EXPECT_THAT(SafetensorsDirectory::open(directory.path()).error().text, HasSubstr("regular file"));
}

TEST(SafetensorsDirectory, ShardsAreChecked) {
  const TempDirectory directory;
  write_file(directory, "s1", image(two_tensors().dump(), 22));
  const auto open_with = [&](const json& index) {
    directory.write("model.safetensors.index.json", index.dump());
    return SafetensorsDirectory::open(directory.path());
  };
  EXPECT_TRUE(open_with({{"weight_map", {{"a", "s1"}, {"b", "s1"}}}}));
  EXPECT_THAT(open_with({{"weight_map", {{"a", "s1"}, {"c", "s1"}}}}).error().text,
              HasSubstr("\"c\""));
  EXPECT_EQ(open_with({{"weight_map", {{"a", "s2"}}}}).error().code, Errc::not_found);
  for (const char* hostile : {"../s1", "/etc/passwd", "", ".", ".."})
    EXPECT_THAT(open_with({{"weight_map", {{"a", hostile}}}}).error().text,
                HasSubstr("beside the index"));
  EXPECT_FALSE(open_with({{"weight_map", {{"a", 3}}}}));
  EXPECT_FALSE(open_with({{"weight_map", 3}}));
  EXPECT_FALSE(open_with(json::object()));
}

}  // namespace
}  // namespace kvhive
