#include "models/adapters/lora_adapter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json_file.hpp"
#include "models/safetensors.hpp"
#include "models/transformer.hpp"
#include "tests/models/golden.hpp"
#include "tests/models/paged_runner.hpp"
#include "tests/support/safetensors_file.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

using testing::safetensors;
using testing::Tensor;
using testing::Tensors;

Tensors read_tensors(const std::filesystem::path& directory) {
  const auto files = SafetensorsDirectory::open(directory).value();
  Tensors tensors;
  for (const std::string& name : files.names()) {
    const TensorEntry& entry = *files.entry(name);
    Tensor tensor{entry.shape, std::vector<float>(entry.bytes.size() / sizeof(float))};
    std::memcpy(tensor.values.data(), entry.bytes.data(), entry.bytes.size());
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

/// An adapter of a golden model with random matrices of this rank for some of its weights.
class Adapter {
 public:
  Adapter(std::uint32_t seed, std::int64_t rank, double alpha,
          const std::vector<std::string>& targets, const std::string& model = "llama2")
      : model_(model), rank_(rank), scale_(alpha / static_cast<double>(rank)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.1f);
    const Tensors weights = read_tensors(kGolden / model);
    for (const auto& [name, tensor] : weights)
      for (const std::string& target : targets) {
        if (name.find(target + ".weight") == std::string::npos) continue;
        const std::string base = name.substr(0, name.size() - std::strlen(".weight"));
        Tensor a{{rank, tensor.shape[1]}, std::vector<float>(rank * tensor.shape[1])};
        Tensor b{{tensor.shape[0], rank}, std::vector<float>(rank * tensor.shape[0])};
        for (float& value : a.values) value = normal(random);
        for (float& value : b.values) value = normal(random);
        pairs_[base] = {a, b};
      }
    config_ = {{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", alpha}, {"bias", "none"}};
    write();
  }

  const std::filesystem::path& path() const { return directory_.path(); }
  Json& config() { return config_; }
  void write(const std::function<void(Tensors&)>& change = {}) {
    Tensors tensors;
    for (const auto& [base, pair] : pairs_) {
      tensors["base_model.model." + base + ".lora_A.weight"] = pair.first;
      tensors["base_model.model." + base + ".lora_B.weight"] = pair.second;
    }
    if (change) change(tensors);
    directory_.write("adapter_model.safetensors", safetensors(tensors));
    directory_.write("adapter_config.json", config_.dump());
  }

  /// The model with W + scale B A in place of W.
  void merge_into(const TempDirectory& model) const {
    Tensors tensors = read_tensors(kGolden / model_);
    for (const auto& [base, pair] : pairs_) {
      Tensor& w = tensors[base + ".weight"];
      const auto& [a, b] = pair;
      const std::int64_t in = w.shape[1];
      for (std::int64_t row = 0; row < w.shape[0]; ++row)
        for (std::int64_t column = 0; column < in; ++column) {
          double sum = 0;
          for (std::int64_t r = 0; r < rank_; ++r)
            sum += double{b.values[row * rank_ + r]} * a.values[r * in + column];
          w.values[row * in + column] += static_cast<float>(scale_ * sum);
        }
    }
    model.write("model.safetensors", safetensors(tensors));
  }

 private:
  TempDirectory directory_;
  std::string model_;
  std::int64_t rank_;
  double scale_;
  std::map<std::string, std::pair<Tensor, Tensor>> pairs_;
  Json config_;
};

const std::vector<std::string> kAll{"q_proj",  "k_proj",    "v_proj",   "o_proj",
                                    "up_proj", "gate_proj", "down_proj"};

/// Runs sequences with adapters over one arena: what StepBatch does for the engine.
class AdaptedRunner {
 public:
  explicit AdaptedRunner(Transformer& model)
      : model_(model),
        layout_(kv_layout(model.config(), one_group(model.config()), 64,
                          model.config().is_latent() ? Dtype::bf16 : Dtype::f32)),
        arena_(8 * layout_.block_bytes(), std::byte{0xFF}) {}

  struct Feed {
    std::uint32_t block = 0;  ///< of the sequence: its number
    std::int32_t adapter = -1;
    std::vector<TokenId> tokens;
  };
  /// The logits of all tokens, feed by feed.
  std::vector<std::vector<float>> step(const std::vector<Feed>& feeds) {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> positions, query_start{0}, kv_len, rows, adapters;
    std::vector<std::int64_t> slots;
    std::vector<BlockId> table;
    for (const Feed& feed : feeds) {
      std::int32_t& length = lengths_[feed.block];
      for (const TokenId token : feed.tokens) {
        rows.push_back(static_cast<std::int32_t>(tokens.size()));
        tokens.push_back(token);
        positions.push_back(length);
        slots.push_back(feed.block * 64 + length++);
      }
      query_start.push_back(static_cast<std::int32_t>(tokens.size()));
      kv_len.push_back(length);
      table.push_back(BlockId{feed.block});
      adapters.push_back(feed.adapter);
    }
    const std::size_t vocab = model_.config().vocab_size;
    std::vector<float> logits(tokens.size() * vocab);
    model_.forward({tokens, positions, query_start, kv_len, table, slots, rows, 1, adapters},
                   arena_.data(), layout_, logits);
    std::vector<std::vector<float>> parts;
    for (std::size_t b = 0; b < feeds.size(); ++b)
      parts.emplace_back(logits.begin() + query_start[b] * vocab,
                         logits.begin() + query_start[b + 1] * vocab);
    return parts;
  }

 private:
  Transformer& model_;
  KvLayout layout_;
  std::vector<std::byte> arena_;
  std::map<std::uint32_t, std::int32_t> lengths_;
};

std::vector<float> logits_of(Transformer& model, std::int32_t adapter,
                             const std::vector<TokenId>& tokens) {
  return AdaptedRunner(model).step({{0, adapter, tokens}}).front();
}

class LoraAdapterTest : public ::testing::Test {
 protected:
  Transformer llama_ = Transformer::load(kGolden / "llama2").value();
  const std::vector<TokenId> tokens_ = read_golden("llama2").tokens;
};

TEST_F(LoraAdapterTest, LogitsAreThoseOfMergedWeights) {
  for (const auto& targets : {kAll, std::vector<std::string>{"q_proj", "v_proj"}}) {
    const Adapter adapter(3, 4, 8, targets);
    ASSERT_EQ(llama_.add_adapter(adapter.path()).value() % 2, targets == kAll ? 0 : 1);
    const TempDirectory merged(kGolden / "llama2");
    adapter.merge_into(merged);
    auto model = Transformer::load(merged.path()).value();
    const auto expected = logits_of(model, -1, tokens_);
    const auto plain = logits_of(llama_, -1, tokens_);
    const auto adapted = logits_of(llama_, targets == kAll ? 0 : 1, tokens_);
    EXPECT_LT(relative_error(adapted, expected), 1e-5);
    EXPECT_GT(relative_error(plain, expected), 1e-2)
        << "an adapter that does nothing shows nothing";
  }
}

/// kv_b_proj is absorbed, so it has no product that an adapter could be added to.
TEST(LoraOfLatents, LogitsAreThoseOfMergedWeightsAndTheAbsorbedMatrixIsRefused) {
  const std::string name = "deepseek_v2_lite";
  auto plain = Transformer::load(kGolden / name).value();
  const auto tokens = read_golden(name).tokens;
  const Adapter adapter(3, 4, 8, {"self_attn.q_proj", "kv_a_proj_with_mqa", "o_proj"}, name);
  ASSERT_EQ(plain.add_adapter(adapter.path()).value(), 0);
  const TempDirectory merged(kGolden / name);
  adapter.merge_into(merged);
  auto model = Transformer::load(merged.path()).value();
  const auto expected = logits_of(model, -1, tokens);
  // Rows of bf16: f32 rounds a few elements the other way.
  EXPECT_LT(relative_error(logits_of(plain, 0, tokens), expected), 1e-3);
  EXPECT_GT(relative_error(logits_of(plain, -1, tokens), expected), 1e-2);
  const auto refused = plain.add_adapter(Adapter(3, 4, 8, {"kv_b_proj"}, name).path());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("kv_b_proj"));
  EXPECT_THAT(refused.error().text, HasSubstr("kv_a_proj_with_mqa"));
}

TEST_F(LoraAdapterTest, RankStabilisedScalesAreDividedByTheRoot) {
  Adapter adapter(3, 4, 8, kAll);
  adapter.config()["use_rslora"] = true;
  adapter.write();
  ASSERT_EQ(llama_.add_adapter(adapter.path()).value(), 0);
  const Adapter twice(3, 4, 16, kAll);  // 8 / sqrt(4) = 16 / 4
  ASSERT_EQ(llama_.add_adapter(twice.path()).value(), 1);
  EXPECT_EQ(logits_of(llama_, 0, tokens_), logits_of(llama_, 1, tokens_));
}

/// Sequences with different adapters and without one, side by side and in chunks: each has the bits
/// that it has alone.
TEST_F(LoraAdapterTest, SeveralAdaptersInABatchDoNotChangeBits) {
  const Adapter first(3, 4, 8, kAll), second(9, 2, 4, {"q_proj", "down_proj"});
  ASSERT_TRUE(llama_.add_adapter(first.path()).has_value());
  ASSERT_TRUE(llama_.add_adapter(second.path()).has_value());
  std::vector<std::vector<float>> alone;
  for (const std::int32_t adapter : {-1, 0, 1})
    alone.push_back(logits_of(llama_, adapter, tokens_));

  AdaptedRunner runner(llama_);
  std::vector<std::vector<float>> batched(3);
  const auto half = tokens_.begin() + 9;
  for (const auto& part :
       {std::vector<TokenId>(tokens_.begin(), half), std::vector<TokenId>(half, tokens_.end())}) {
    const auto logits = runner.step({{1, 0, part}, {2, 0, {5, 6}}, {3, 1, part}, {4, -1, part}});
    for (const auto& [adapter, place] : {std::pair{0, 3}, {1, 0}, {2, 2}})
      batched[adapter].insert(batched[adapter].end(), logits[place].begin(), logits[place].end());
  }
  EXPECT_EQ(batched, alone);
}

// -- what is refused ------------------------------------------------------------------------------

class RefusedAdapter : public LoraAdapterTest {
 protected:
  std::string error() {
    const auto added = llama_.add_adapter(adapter_.path());
    return added ? "" : added.error().text;
  }
  Adapter adapter_{3, 4, 8, {"q_proj"}};
};

TEST_F(RefusedAdapter, FieldsThatChangeWhatIsComputedAreNamed) {
  EXPECT_EQ(error(), "");
  const Json sound = adapter_.config();
  for (const auto& [field, value] : {std::pair<const char*, Json>{"peft_type", "IA3"},
                                     {"bias", "all"},
                                     {"use_dora", true},
                                     {"fan_in_fan_out", true},
                                     {"modules_to_save", {"lm_head"}},
                                     {"rank_pattern", {{"q_proj", 8}}},
                                     {"lora_alpha", "eight"},
                                     {"r", 0}}) {
    adapter_.config() = sound;
    adapter_.config()[field] = value;
    adapter_.write();
    EXPECT_THAT(error(), HasSubstr(field)) << value;
  }
}

TEST_F(RefusedAdapter, TensorsThatFitNothingAreNamed) {
  adapter_.write([](Tensors& tensors) {
    tensors["base_model.model.lm_head.lora_A.weight"] = {{1, 1}, {0}};
  });
  EXPECT_THAT(error(), HasSubstr("lm_head.lora_A.weight belongs to nothing that kvhive adapts"));
  adapter_.write([](Tensors& tensors) { tensors.erase(tensors.begin()); });
  EXPECT_THAT(error(), HasSubstr("lora_A.weight is missing"));
  adapter_.write([](Tensors& tensors) { std::next(tensors.begin())->second.shape = {4, 32}; });
  EXPECT_THAT(error(), HasSubstr("shape"));
  adapter_.write([](Tensors& tensors) { tensors.clear(); });
  EXPECT_THAT(error(), HasSubstr("has no tensor"));
}

TEST_F(RefusedAdapter, AMissingDirectoryIsNamed) {
  const auto added = llama_.add_adapter("/nowhere");
  ASSERT_FALSE(added.has_value());
  EXPECT_THAT(added.error().text, HasSubstr("/nowhere/adapter_config.json"));
}

}  // namespace
}  // namespace kvhive
