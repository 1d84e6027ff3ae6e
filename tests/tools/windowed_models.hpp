#pragma once
// Models with windows, made of the demo model's weights: nobody trained them so, and their text is
// nonsense, but their tokens are exactly determined.

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/json_file.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// A model directory that lasts as long as this object.
class WindowedModel {
 public:
  /// All four layers see `window` tokens: one cache group.
  static WindowedModel mistral(std::uint32_t window) {
    return WindowedModel({{"architectures", {"MistralForCausalLM"}}, {"sliding_window", window}},
                         false);
  }
  /// The first layers see everything, those from `first` on see `window` tokens: several groups.
  static WindowedModel qwen(std::uint32_t window, std::uint32_t first) {
    return WindowedModel({{"architectures", {"Qwen2ForCausalLM"}},
                          {"sliding_window", window},
                          {"use_sliding_window", true},
                          {"max_window_layers", first}},
                         true);
  }
  std::string path() const { return directory_.path().string(); }

 private:
  WindowedModel(const Json& changes, bool has_biases) {
    namespace fs = std::filesystem;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
      fs::copy_file(fs::path(kDemoModel) / name, directory_.path() / name);
    Json config = read_json_object(fs::path(kDemoModel) / "config.json").value();
    for (const char* gone : {"model_type", "attention_bias", "mlp_bias", "rope_scaling"})
      config.erase(gone);
    config.update(changes);
    std::ofstream(directory_.path() / "config.json") << config.dump(1);
    const std::string bytes = read_text_file(fs::path(kDemoModel) / "model.safetensors").value();
    std::ofstream(directory_.path() / "model.safetensors", std::ios::binary)
        << (has_biases ? with_biases(bytes, config) : bytes);
  }

  /// The same safetensors file with biases of zero behind q, k and v, which Qwen2 has.
  static std::string with_biases(const std::string& file, const Json& config) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    Json header = Json::parse(file.substr(8, length));
    std::string data = file.substr(8 + length);
    for (int layer = 0; layer < config["num_hidden_layers"].get<int>(); ++layer)
      for (const char* part : {"q", "k", "v"}) {
        const std::string name =
            "model.layers." + std::to_string(layer) + ".self_attn." + part + "_proj.";
        const std::size_t rows = header[name + "weight"]["shape"][0];
        header[name + "bias"] = {{"dtype", "BF16"},
                                 {"shape", {rows}},
                                 {"data_offsets", {data.size(), data.size() + 2 * rows}}};
        data.append(2 * rows, '\0');
      }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    length = text.size();
    std::string start(sizeof length, '\0');
    std::memcpy(start.data(), &length, sizeof length);
    return start + text + data;
  }

  TempDirectory directory_;
};

}  // namespace kvhive::testing
