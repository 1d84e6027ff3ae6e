// Prompts as torch.save() writes them, and as somebody writes them who means ill.

#include "tools/serve/tensor/prompt_rows.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/serve/tensor/saved_tensor.hpp"
#include "tools/serve/tensor/base64.hpp"
#include "tools/serve/tensor/torch_pickle.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr RowBounds kAnyWidth{4096, 0};
constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;

Expected<PromptRows> read_bytes(const std::string& archive, const RowBounds& bounds = kAnyWidth) {
  return read_torch_tensor(std::as_bytes(std::span(archive)), bounds);
}

/// The error's text, or what is wrong with there being none.
std::string trouble_of(const Expected<PromptRows>& rows) {
  return rows ? "there is no error" : rows.error().text;
}

/// Lines that tests/beside/torch_tensors.py has written.
std::vector<Json> recorded() {
  const char* const fresh = std::getenv("KVHIVE_TORCH_TENSORS");
  std::ifstream file(fresh != nullptr ? fresh : KVHIVE_TORCH_TENSORS_RECORD);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(TorchTensor, IsReadAsTorchHasSavedIt) {
  const std::vector<Json> cases = recorded();
  ASSERT_GT(cases.size(), 20u);
  for (const Json& each : cases) {
    const auto rows = read_prompt_rows(each["file"].get<std::string>(), kAnyWidth);
    if (each.contains("says")) {
      EXPECT_THAT(trouble_of(rows), HasSubstr(each["says"].get<std::string>())) << each["name"];
      continue;
    }
    ASSERT_TRUE(rows.has_value()) << each["name"] << rows.error().text;
    const auto wanted = each["rows"].get<std::vector<std::vector<float>>>();
    std::vector<float> values;
    for (const auto& row : wanted) values.insert(values.end(), row.begin(), row.end());
    EXPECT_EQ(rows->count(), wanted.size()) << each["name"];
    EXPECT_EQ(rows->values, values) << each["name"];
  }
}

/// Whatever is read of it then is no more than came.
void expect_in_bounds(const Expected<PromptRows>& rows, std::size_t bytes) {
  if (!rows) {
    EXPECT_FALSE(rows.error().text.empty());
    return;
  }
  EXPECT_EQ(rows->count() * rows->width, rows->values.size());
  EXPECT_LT(rows->count(), kAnyWidth.rows);
  EXPECT_LE(rows->values.size() * 2, bytes);
}

TEST(TorchTensor, AnArchiveThatWasCutOrChangedIsAnErrorOrInBounds) {
  std::mt19937 random(1);
  for (const Json& each : recorded()) {
    const std::string whole = bytes_of_base64(each["file"].get<std::string>());
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const auto rows = read_bytes(whole.substr(0, size));
      EXPECT_FALSE(rows.has_value()) << each["name"] << " cut at " << size;
    }
    for (int i = 0; i < 500; ++i) {
      std::string changed = whole;
      for (std::uint32_t left = 1 + random() % 4; left > 0; --left)
        changed[random() % changed.size()] = static_cast<char>(random());
      expect_in_bounds(read_bytes(changed), changed.size());
    }
  }
}

/// With the checksum that it has then.
TEST(TorchTensor, APickleThatWasChangedIsAnErrorOrInBounds) {
  std::mt19937 random(2);
  const std::string values(48, '\1');
  const std::string whole =
      SavedTensor{.storage_size = 12, .sizes = {3, 4}, .strides = {4, 1}}.pickle();
  ASSERT_TRUE(read_bytes(archive_of(whole, values)).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read_torch_pickle(whole.substr(0, size)).has_value()) << size;
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = whole;
    for (std::uint32_t left = 1 + random() % 3; left > 0; --left)
      changed[random() % changed.size()] =
          random() % 2 != 0 ? static_cast<char>(random()) : whole[random() % whole.size()];
    expect_in_bounds(read_bytes(archive_of(changed, values)), values.size() * 2);
  }
}

TEST(TorchTensor, NumbersThatDoNotFitEachOtherAreRefused) {
  const std::string values(48, '\0');  // 12 values
  const struct {
    SavedTensor tensor;
    const char* says;
  } cases[] = {
      {{.storage_size = 12, .sizes = {4, 4}, .strides = {4, 1}}, "beyond its storage"},
      {{.storage_size = 12, .offset = 1, .sizes = {3, 4}, .strides = {4, 1}}, "beyond its storage"},
      {{.storage_size = 12, .offset = kHuge, .sizes = {3, 4}, .strides = {4, 1}}, "beyond"},
      {{.storage_size = 12, .sizes = {3, 4}, .strides = {kHuge, 1}}, "beyond its storage"},
      {{.storage_size = 12, .sizes = {3, 4}, .strides = {4, kHuge}}, "beyond its storage"},
      {{.storage_size = 12, .sizes = {5, 4}, .strides = {kHuge, 1}}, "beyond its storage"},  // 2^64
      {{.storage_size = 12, .sizes = {3, kHuge}, .strides = {4, 1}}, "values; the model's"},
      {{.storage_size = 12, .sizes = {kHuge, 4}, .strides = {0, 0}}, "rows; a request may have"},
      {{.storage_size = 12, .sizes = {3, 5}, .strides = {0, 0}}, "it was expanded"},
      {{.storage_size = kHuge, .sizes = {3, 4}, .strides = {4, 1}}, "48 bytes of values"},
      {{.storage_size = 13, .sizes = {3, 4}, .strides = {4, 1}}, "48 bytes of values"},
      {{.storage_size = 12, .sizes = {3, 4}, .strides = {4}}, "the shape [3, 4]"},
      {{.storage_size = 12, .sizes = {1, 3, 4}, .strides = {4, 1}}, "the shape [1, 3, 4]"},
      {{.storage_size = 12, .sizes = {}, .strides = {}}, "the shape []"},
      {{.type = "HalfStorage", .storage_size = 12, .sizes = {3, 4}, .strides = {4, 1}}, "48 bytes"},
      {{.type = "CharStorage", .storage_size = 12, .sizes = {3, 4}, .strides = {4, 1}},
       "torch.Char"},
  };
  for (const auto& [tensor, says] : cases)
    EXPECT_THAT(trouble_of(read_bytes(archive_of(tensor.pickle(), values))), HasSubstr(says));
}

const SavedTensor kFour{.storage_size = 4, .sizes = {2, 2}, .strides = {2, 1}};

TEST(TorchTensor, NothingIsUnpackedAndNothingOfAnotherOrder) {
  const std::string values(16, '\0');
  EXPECT_TRUE(read_bytes(archive_of(kFour.pickle(), values)).has_value());
  EXPECT_THAT(trouble_of(read_bytes(archive_of(kFour.pickle(), values, "big"))),
              HasSubstr("not little endian"));
  const std::string bomb(64 << 20, '\0');
  SavedTensor much = kFour;
  much.storage_size = bomb.size() / 4;
  const std::string packed = zipped({{"archive/data.pkl", much.pickle()}, {"archive/data/0", bomb}},
                                    Compression::deflated);
  EXPECT_LT(packed.size(), bomb.size() / 500);
  EXPECT_THAT(trouble_of(read_bytes(packed)), HasSubstr("compressed"));
  EXPECT_THAT(trouble_of(read_bytes(zipped({{"archive/data.pkl", std::string(70'000, 'N')}}))),
              HasSubstr("70000 bytes"));
  EXPECT_THAT(trouble_of(read_bytes(zipped({{"archive/data.pkl", kFour.pickle()}}))),
              HasSubstr("without data/0"));
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 65; ++i) many.emplace_back("a/" + std::to_string(i), "");
  EXPECT_THAT(trouble_of(read_bytes(zipped(many))), HasSubstr("65 entries"));
}

/// Files have the folder's name from their own.
TEST(TorchTensor, TheFolderInTheArchiveMayHaveAnyName) {
  const std::string file =
      zipped({{"rows/data.pkl", kFour.pickle()}, {"rows/data/0", std::string(16, '\0')}});
  EXPECT_EQ(read_bytes(file).value().count(), 2u);
}

TEST(TorchTensor, TheModelsBoundsAreThose) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string file = saved_rows(values, 3);
  EXPECT_EQ(read_prompt_rows(file, {3, 3}).value().values, values);
  EXPECT_THAT(trouble_of(read_prompt_rows(file, {2, 3})),
              HasSubstr("2 rows; a request may have 2"));
  EXPECT_THAT(trouble_of(read_prompt_rows(file, {3, 4})), HasSubstr("hidden_size is 4"));
}

/// One instruction more than a tensor takes.
TEST(TorchPickle, KnowsNoOtherInstructionAndNoOtherName) {
  const std::string pickle = kFour.pickle(), body = pickle.substr(2);
  EXPECT_TRUE(read_torch_pickle(pickle).has_value());
  for (const char* other :
       {"cos\nsystem\n", "cbuiltins\neval\n", "ctorch.storage\n_load_from_bytes\n"})
    EXPECT_THAT(read_torch_pickle("\x80\x02" + std::string(other) + body).error().text,
                HasSubstr(" in it; send torch.save()"));
  for (int letter = 0; letter < 256; ++letter) {
    const bool is_known = std::string(
                              "\x80\x85\x86\x87\x88\x89\x8a"
                              "cqrhj()tXKMJQR.")
                              .find(static_cast<char>(letter)) != std::string::npos;
    if (is_known) continue;
    const auto tensor = read_torch_pickle("\x80\x02" + std::string(1, char(letter)) + body);
    EXPECT_FALSE(tensor.has_value()) << letter;
  }
  EXPECT_FALSE(read_torch_pickle(pickle + ".").has_value());
  EXPECT_FALSE(read_torch_pickle("\x80\x02" + std::string(3000, '\x85')).has_value());
  EXPECT_FALSE(read_torch_pickle("\x80\x02)" + std::string(3000, '\x85') + ".").has_value());
  EXPECT_FALSE(read_torch_pickle(std::string(5000, ')')).has_value());
}

std::string decoded(std::string_view text) {
  const auto bytes = decode_base64(text);
  return bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())
               : bytes.error().text;
}

TEST(Base64, IsReadAsTheStandardSays) {
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("Zg=="), "f");
  EXPECT_EQ(decoded("Zm8="), "fo");
  EXPECT_EQ(decoded("Zm9v"), "foo");
  EXPECT_EQ(decoded("+/+/"), "\xfb\xff\xbf");
  std::string bytes(100'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3);
  EXPECT_EQ(decoded(base64_of(bytes)), bytes);
  for (const char* wrong : {"Zg=", "Zg", "Z", "Zm8==", "=Zm8", "Zm=8", "Zm8=Zm8=", "Zm9v\n",
                            " Zm9v", "Zm9-", "Zm9_", "====", "data:,Zm9v"})
    EXPECT_THAT(decoded(wrong), HasSubstr("base64")) << wrong;
}

}  // namespace
}  // namespace kvhive::testing
