#pragma once
// Random adapters of golden models, and sequences that are computed with them.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/safetensors.hpp"
#include "models/transformer.hpp"
#include "tests/models/golden.hpp"
#include "tests/support/safetensors_file.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {

using testing::safetensors;
using testing::Tensor;
using testing::Tensors;

inline Tensors read_tensors(const std::filesystem::path& directory) {
  const auto files = SafetensorsDirectory::open(directory).value();
  Tensors tensors;
  for (const std::string& name : files.names()) {
    const std::vector<std::int64_t>& shape = files.entry(name)->shape;
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    Tensor tensor{shape, std::vector<float>(count)};
    read_floats(files.find(name, shape).value(), 0, tensor.values);
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

/// Writes a model's weights as f32, into one file: products round nothing then.
inline void widen_weights(const TempDirectory& model) {
  const std::string weights = safetensors(read_tensors(model.path()));
  for (const auto& file : std::filesystem::directory_iterator(model.path()))
    if (file.path().filename().string().find("safetensors") != std::string::npos)
      std::filesystem::remove(file.path());
  model.write("model.safetensors", weights);
  nlohmann::json config = nlohmann::json::parse(model.read("config.json"));
  config["torch_dtype"] = "float32";
  model.write("config.json", config.dump());
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
  nlohmann::json& config() { return config_; }
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
  nlohmann::json config_;
};

inline const std::vector<std::string> kAllMatrices{"q_proj",  "k_proj",    "v_proj",   "o_proj",
                                                   "up_proj", "gate_proj", "down_proj"};

/// Runs sequences with adapters over one arena: what StepBatch does for the engine.
class AdaptedRunner {
 public:
  /// Computes a batch over an arena of kBlocks blocks of this layout.
  using Forward =
      std::function<void(const ForwardBatch&, const KvLayout&, std::span<float> logits)>;
  static constexpr std::uint32_t kBlocks = 48, kBlockSize = 64;

  AdaptedRunner(const ModelConfig& config, Forward forward)
      : vocab_(config.vocab_size), layout_(layout_of(config)), forward_(std::move(forward)) {}

  static KvLayout layout_of(const ModelConfig& config) {
    return kv_layout(config, one_group(config), kBlockSize,
                     config.is_latent() ? Dtype::bf16 : Dtype::f32);
  }

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
        slots.push_back(feed.block * kBlockSize + length++);
      }
      query_start.push_back(static_cast<std::int32_t>(tokens.size()));
      kv_len.push_back(length);
      table.push_back(BlockId{feed.block});
      adapters.push_back(feed.adapter);
    }
    if (std::ranges::all_of(adapters, [](std::int32_t adapter) { return adapter < 0; }))
      adapters.clear();
    std::vector<float> logits(tokens.size() * vocab_);
    forward_({tokens, positions, query_start, kv_len, table, slots, rows, 1, adapters}, layout_,
             logits);
    std::vector<std::vector<float>> parts;
    for (std::size_t b = 0; b < feeds.size(); ++b)
      parts.emplace_back(logits.begin() + query_start[b] * vocab_,
                         logits.begin() + query_start[b + 1] * vocab_);
    return parts;
  }

 private:
  std::size_t vocab_;
  KvLayout layout_;
  Forward forward_;
  std::map<std::uint32_t, std::int32_t> lengths_;
};

/// The logits of these tokens without an adapter, with the first and with the second, computed in
/// two chunks beside each other and a sequence more.
inline std::vector<std::vector<float>> side_by_side(AdaptedRunner& runner,
                                                    const std::vector<TokenId>& tokens) {
  std::vector<std::vector<float>> batched(3);
  const auto half = tokens.begin() + 9;
  for (const auto& part :
       {std::vector<TokenId>(tokens.begin(), half), std::vector<TokenId>(half, tokens.end())}) {
    const auto logits = runner.step({{1, 0, part}, {2, 0, {5, 6}}, {3, 1, part}, {4, -1, part}});
    for (const auto& [adapter, place] : {std::pair{0, 3}, {1, 0}, {2, 2}})
      batched[adapter].insert(batched[adapter].end(), logits[place].begin(), logits[place].end());
  }
  return batched;
}

/// Runs a transformer with adapters over an arena of its own.
inline AdaptedRunner runner_of(Transformer& model) {
  const std::size_t bytes =
      AdaptedRunner::kBlocks * AdaptedRunner::layout_of(model.config()).block_bytes();
  return {model.config(),
          [&model, arena = std::vector<std::byte>(bytes, std::byte{0xFF})](
              const ForwardBatch& batch, const KvLayout& layout, std::span<float> logits) mutable {
            model.forward(batch, arena.data(), layout, logits);
          }};
}

inline std::vector<float> logits_of(Transformer& model, std::int32_t adapter,
                                    const std::vector<TokenId>& tokens) {
  return runner_of(model).step({{0, adapter, tokens}}).front();
}

}  // namespace kvhive
