// A size that the kernels of the GPU do not take is refused by name, wherever a model gets there.

#include "models/gpu/gpu_support.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/gpu/gpu_transformer.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "tests/device/fake_device.hpp"
#include "tests/models/golden.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;

struct Refused {
  const char* model;
  void (*change)(ModelConfig&);
  const char* named;
};

class GpuSupportOf : public ::testing::TestWithParam<Refused> {};

TEST_P(GpuSupportOf, NamesASizeThatItDoesNotTake) {
  const auto directory = kGolden / GetParam().model;
  auto config = load_model_config(directory).value();
  EXPECT_TRUE(check_gpu_model(config));
  GetParam().change(config);
  const auto expect_refusal = [this](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::unsupported);
    EXPECT_THAT(result.error().text, HasSubstr(this->GetParam().named));
    EXPECT_THAT(result.error().text, HasSubstr("use --device cpu"));
  };
  expect_refusal(check_gpu_model(config));
  testing::FakeDevice device;
  expect_refusal(GpuTransformer::create(device, config, nullptr, {}, one_group(config)));
  const auto files = SafetensorsDirectory::open(directory).value();
  expect_refusal(upload_weights(device, config, files, nullptr));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GpuSupportOf,
    ::testing::Values(
        Refused{"llama3", [](ModelConfig& config) { config.head_size = 12; }, "head size 12"},
        Refused{"llama3", [](ModelConfig& config) { config.head_size = 320; }, "head size 320"},
        Refused{"qwen3_moe", [](ModelConfig& config) { config.expert_inner = 28; },
                "moe_intermediate_size 28"},
        Refused{"qwen3_moe", [](ModelConfig& config) { config.hidden_size = 36; },
                "hidden_size 36"},
        Refused{"qwen3_moe", [](ModelConfig& config) { config.experts = 2000; },
                "num_experts 2000: on a GPU there may be 32 of 1024"},
        Refused{"qwen3_moe_raw", [](ModelConfig& config) { config.experts_per_token = 33; },
                "num_experts_per_tok 33 of num_experts 5"},
        Refused{"deepseek_v2", [](ModelConfig& config) { config.latent.nope = 12; },
                "qk_nope_head_dim 12"}),
    [](const auto& test) {
      return std::string(test.param.model) + "_" + std::to_string(test.index);
    });

TEST(GpuSupport, ModelsOfF32HaveRowsOfAnyWidth) {
  auto config = load_model_config(kGolden / "qwen3_moe_raw").value();
  config.expert_inner = 28;
  EXPECT_TRUE(check_gpu_model(config));
}

}  // namespace
}  // namespace kvhive
