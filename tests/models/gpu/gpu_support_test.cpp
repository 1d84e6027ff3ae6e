// What the GPU's forward pass does not compute is refused by name, wherever a model gets there.

#include "models/gpu/gpu_support.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device_memory.hpp"
#include "models/gpu/gpu_transformer.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "tests/device/fake_device.hpp"
#include "tests/models/golden.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;

struct Refused {
  const char* model;
  const char* named;
};

class GpuSupportOf : public ::testing::TestWithParam<Refused> {};

TEST_P(GpuSupportOf, NamesWhatItDoesNotCompute) {
  const auto directory = kGolden / GetParam().model;
  const auto config = load_model_config(directory).value();
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

INSTANTIATE_TEST_SUITE_P(Models, GpuSupportOf,
                         ::testing::Values(Refused{"gemma2", "Gemma2ForCausalLM"},
                                           Refused{"gemma3", "Gemma3ForCausalLM"},
                                           Refused{"qwen3_moe", "mixture of experts"},
                                           Refused{"yarn", "yarn"},
                                           Refused{"deepseek_v2_lite", "latent attention"},
                                           Refused{"fp8_channel", "weights in FP8"}),
                         [](const auto& test) { return std::string(test.param.model); });

TEST(GpuSupport, NamesScalesThatItWouldPassOver) {
  const auto files = SafetensorsDirectory::open(kGolden / "fp8_tensor").value();
  auto config = load_model_config(kGolden / "fp8_tensor").value();
  config.quantization = {};
  const auto checked = check_gpu_files(config, files);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().text, HasSubstr("k_scale"));
  testing::FakeDevice device;
  EXPECT_EQ(upload_weights(device, config, files, nullptr).error().text, checked.error().text);
}

TEST(GpuSupport, TakesWhatItComputes) {
  for (const char* const model : {"llama2", "llama3", "mistral", "qwen2", "qwen3"})
    EXPECT_TRUE(check_gpu_model(load_model_config(kGolden / model).value())) << model;
}

}  // namespace
}  // namespace kvhive
