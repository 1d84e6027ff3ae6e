#pragma once
// Writes safetensors files of f32 tensors.

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvhive::testing {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

inline std::string safetensors(const Tensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t bytes = tensor.values.size() * sizeof(float);
    header[name] = {{"dtype", "F32"},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + bytes}}};
    data.append(reinterpret_cast<const char*>(tensor.values.data()), bytes);
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + text + data;
}

}  // namespace kvhive::testing
