// The layout of weights in GPU memory, and their upload.

#include "models/gpu/gpu_weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "device/device_memory.hpp"
#include "models/gpu/gpu_adapters.hpp"
#include "models/rope.hpp"
#include "tests/device/fake_device.hpp"
#include "tests/models/adapters/adapted.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

constexpr const char* kAllModels[] = {"llama2", "llama3",     "mistral",     "qwen2",
                                      "qwen3",  "gemma2",     "gemma3",      "qwen3_moe",
                                      "yarn",   "fp8_tensor", "deepseek_v2", "deepseek_v2_lite"};
/// Those whose tensors go to the region as the files have them.
constexpr const char* kModels[] = {"llama2", "llama3", "mistral", "qwen2", "qwen3"};

/// A model's weights in a region of a fake device, whose memory is the host's.
struct Uploaded {
  ModelConfig config;
  SafetensorsDirectory files;
  GpuWeights weights{config};
  testing::FakeDevice device;
  DeviceBuffer region = DeviceBuffer::allocate(device, weights.bytes).value();

  explicit Uploaded(const std::string& model)
      : config(load_model_config(kGolden / model).value()),
        files(SafetensorsDirectory::open(kGolden / model).value()) {
    EXPECT_TRUE(upload_weights(device, config, files, region.data()));
  }
};

TEST(GpuWeights, LieApartAndAlignedInOneRegion) {
  for (const std::string model : kAllModels) {
    const auto config = load_model_config(kGolden / model).value();
    const GpuWeights weights(config);
    std::size_t end = weights.kv_scales + std::size_t(config.layers) * 2 * sizeof(float);
    for (const auto& tensor : weights.tensors) {
      EXPECT_GE(tensor.offset, end) << tensor.name;
      const bool follows = tensor.name.find("up_proj") != std::string::npos;
      if (follows)
        EXPECT_EQ(tensor.offset, end) << tensor.name;
      else
        EXPECT_EQ(tensor.offset % 256, 0u) << tensor.name;
      end = tensor.offset + tensor.bytes();
    }
    EXPECT_EQ(weights.bytes, end);
  }
}

/// A product of all experts finds each one's matrix by its number.
TEST(GpuWeights, ExpertsLieAStepApart) {
  const auto config = load_model_config(kGolden / "qwen3_moe").value();
  const GpuWeights weights(config);
  const auto sparse = static_cast<std::int32_t>(std::ranges::find(config.sparse_layers, true) -
                                                config.sparse_layers.begin());
  const auto offset_of = [&](int expert, const std::string& matrix) {
    const std::string name = "model.layers." + std::to_string(sparse) + ".mlp.experts." +
                             std::to_string(expert) + "." + matrix;
    return std::ranges::find(weights.tensors, name + ".weight", &GpuWeights::Tensor::name)->offset;
  };
  const GpuLayer& layer = weights.layers[sparse];
  ASSERT_GT(layer.expert_step, 0);
  for (int expert = 0; expert < config.experts; ++expert) {
    const std::size_t step = std::size_t(expert) * layer.expert_step * bytes_of(config.dtype);
    EXPECT_EQ(offset_of(expert, "gate_proj"),
              layer.product(LayerWeight::expert_gate).weights + step);
    EXPECT_EQ(offset_of(expert, "down_proj"),
              layer.product(LayerWeight::expert_down).weights + step);
  }
}

/// W_UK of each head, [nope, rank] in the file, is [rank, nope].
TEST(GpuWeights, KeyHalvesAreTransposed) {
  const Uploaded uploaded("deepseek_v2_lite");
  const auto& [config, files, weights, device, region] = uploaded;
  const LatentShape& shape = config.latent;
  const std::vector<std::int64_t> file_shape{config.heads * (shape.nope + shape.value), shape.rank};
  std::vector<float> kv_b(std::size_t(file_shape[0] * file_shape[1]));
  read_floats(files.find("model.layers.0.self_attn.kv_b_proj.weight", file_shape).value(), 0, kv_b);
  const auto* const got = region.data() + weights.layers[0].to_latent;
  for (std::int32_t h = 0; h < config.heads; ++h)
    for (std::int32_t l = 0; l < shape.rank; ++l)
      for (std::int32_t n = 0; n < shape.nope; ++n) {
        float value;
        std::memcpy(&value, got + 4 * ((h * shape.rank + l) * shape.nope + n), 4);
        ASSERT_EQ(value, kv_b[(h * (shape.nope + shape.value) + n) * shape.rank + l]);
      }
}

TEST(GpuWeights, GemmasNormsGetTheOneThatTheFilesLack) {
  const Uploaded uploaded("gemma2");
  const auto& [config, files, weights, device, region] = uploaded;
  const std::vector<std::int64_t> shape{config.hidden_size};
  std::vector<float> want(config.hidden_size), got(config.hidden_size);
  read_floats(files.find("model.norm.weight", shape).value(), 0, want);
  for (float& value : want) value += 1;
  std::memcpy(got.data(), region.data() + weights.final_norm, got.size() * sizeof(float));
  EXPECT_EQ(got, want);
}

TEST(GpuWeights, ScalesOfAnFp8CacheAreTheFilesOrOne) {
  for (const auto& [model, are_one] : {std::pair{"fp8_tensor", false}, {"llama3", true}}) {
    const Uploaded uploaded(model);
    const auto& [config, files, weights, device, region] = uploaded;
    for (std::int32_t layer = 0; layer < config.layers; ++layer) {
      float got[2];
      std::memcpy(got, region.data() + weights.kv_scales + std::size_t(layer) * sizeof got,
                  sizeof got);
      const auto scales = read_kv_scales(files, layer).value().value_or(KvScaleValues{});
      EXPECT_EQ(got[0], scales.k);
      EXPECT_EQ(got[1], scales.v);
      EXPECT_EQ(scales.k == 1, are_one);
    }
  }
}

TEST(GpuWeights, AreUploadedAsTheFilesHaveThem) {
  for (const std::string model : kModels) {
    const auto config = load_model_config(kGolden / model).value();
    const auto files = SafetensorsDirectory::open(kGolden / model).value();
    const GpuWeights weights(config);
    testing::FakeDevice device;
    const auto region = DeviceBuffer::allocate(device, weights.bytes).value();
    std::size_t done = 0, all = 0;
    const auto uploaded = upload_weights(device, config, files, region.data(),
                                         [&](std::size_t d, std::size_t a) { done = d, all = a; });
    ASSERT_TRUE(uploaded) << uploaded.error().text;
    EXPECT_EQ(done, weights.tensors.size());
    EXPECT_EQ(all, weights.tensors.size());
    // The fake device's memory is the host's.
    for (const auto& tensor : weights.tensors) {
      const auto view = files.find(tensor.name, tensor.shape).value();
      const std::byte* got = region.data() + tensor.offset;
      if (view.dtype == tensor.dtype) {
        EXPECT_EQ(std::memcmp(got, view.bytes.data(), tensor.bytes()), 0) << tensor.name;
        continue;
      }
      ASSERT_EQ(tensor.dtype, Dtype::f32) << tensor.name;
      std::vector<float> want(tensor.bytes() / sizeof(float));
      read_floats(view, 0, want);
      EXPECT_EQ(std::memcmp(got, want.data(), tensor.bytes()), 0) << tensor.name;
    }
    const Rope rope(config);
    EXPECT_EQ(std::memcmp(region.data() + weights.frequencies, rope.frequencies().data(),
                          rope.frequencies().size_bytes()),
              0);
  }
}

TEST(GpuWeights, AreConvertedToTheModelsDtype) {
  auto config = load_model_config(kGolden / "llama2").value();
  config.dtype = Dtype::bf16;  // the file has f32
  const auto files = SafetensorsDirectory::open(kGolden / "llama2").value();
  const GpuWeights weights(config);
  testing::FakeDevice device;
  const auto region = DeviceBuffer::allocate(device, weights.bytes).value();
  ASSERT_TRUE(upload_weights(device, config, files, region.data()));
  const std::vector<std::int64_t> shape{config.vocab_size, config.hidden_size};
  std::vector<float> want(config.vocab_size * config.hidden_size);
  read_floats(files.find("model.embed_tokens.weight", shape).value(), 0, want);
  for (std::size_t i = 0; i < want.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, region.data() + weights.embedding + 2 * i, 2);
    ASSERT_EQ(bits, bf16_of_float(want[i]));
  }
}

TEST(GpuWeights, AFailedUploadReleasesAllResources) {
  const auto config = load_model_config(kGolden / "llama3").value();
  const auto files = SafetensorsDirectory::open(kGolden / "llama3").value();
  testing::FakeDevice device;
  const auto region = DeviceBuffer::allocate(device, GpuWeights(config).bytes).value();
  std::uint64_t before = device.calls();
  ASSERT_TRUE(upload_weights(device, config, files, region.data()));
  const std::uint64_t calls = device.calls() - before;
  for (std::uint64_t call = 1; call <= calls; ++call) {
    device.set_faults({.call = device.calls() + call, .error = Errc::out_of_memory});
    const auto uploaded = upload_weights(device, config, files, region.data());
    ASSERT_FALSE(uploaded) << call;
    EXPECT_EQ(uploaded.error().code, Errc::out_of_memory);
    EXPECT_EQ(device.leftovers(), 1u) << "call " << call;
  }
  device.set_faults({});
  ASSERT_TRUE(upload_weights(device, config, files, region.data()));
}

TEST(GpuWeights, AMissingTensorIsNamed) {
  auto config = load_model_config(kGolden / "llama3").value();
  config.layers = 3;
  const auto files = SafetensorsDirectory::open(kGolden / "llama3").value();
  testing::FakeDevice device;
  const auto region = DeviceBuffer::allocate(device, GpuWeights(config).bytes).value();
  const auto uploaded = upload_weights(device, config, files, region.data());
  ASSERT_FALSE(uploaded);
  EXPECT_NE(uploaded.error().text.find("model.layers.2."), std::string::npos);
}

TEST(GpuAdapters, LieBehindTheWeightsAndTouchNoneOfThem) {
  const Adapter first(3, 4, 8, kAllMatrices), second(9, 2, 4, {"q_proj"});
  const auto config = load_model_config(kGolden / "llama2").value();
  std::vector<LoraFile> files;
  for (const auto* adapter : {&first, &second})
    files.push_back(LoraFile::open(adapter->path(), config).value());
  const std::size_t begin = GpuWeights(config).bytes;
  const GpuAdapters adapters(files, config.dtype, begin);
  EXPECT_EQ(adapters.most_rank(), 4);
  EXPECT_TRUE(adapters.beside(0, LayerWeight::up));
  EXPECT_FALSE(adapters.beside(0, LayerWeight::router));
  testing::FakeDevice device;
  auto region = DeviceBuffer::allocate(device, adapters.end()).value();
  std::memset(region.data(), 0x5a, adapters.end());
  ASSERT_TRUE(adapters.upload(device, files, region.data()));
  for (std::size_t i = 0; i < begin; ++i) ASSERT_EQ(region.data()[i], std::byte{0x5a}) << i;
  for (const LayerWeight weight : {LayerWeight::q, LayerWeight::up}) {
    const auto* const row = reinterpret_cast<const AdapterMatrices*>(
        region.data() + adapters.beside(1, weight).value());
    EXPECT_EQ(row[0].rank, 4);
    EXPECT_EQ(row[0].scale, 2.0f);
    EXPECT_EQ(row[1].rank, weight == LayerWeight::q ? 2 : 0);
    EXPECT_GE(row[0].a, begin);
  }
  EXPECT_EQ(GpuAdapters({}, config.dtype, begin).end(), begin);
}

}  // namespace
}  // namespace kvhive
