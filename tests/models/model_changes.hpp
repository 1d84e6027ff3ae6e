#pragma once
// Golden models with something changed, and what loading them says.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/safetensors.hpp"
#include "models/transformer.hpp"
#include "tests/models/golden.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {

inline void change_config(const TempDirectory& directory, const nlohmann::json& changes) {
  auto config = nlohmann::json::parse(directory.read("config.json"));
  config.update(changes);
  directory.write("config.json", config.dump());
}

/// Replaces a text in the headers of all files of a model, and in its index.
inline void rename_tensors(const TempDirectory& directory, const std::string& from,
                           const std::string& to) {
  const auto replace = [&](std::string text) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    return text;
  };
  for (const auto& file : std::filesystem::directory_iterator(directory.path())) {
    const std::string name = file.path().filename();
    const std::string content = directory.read(name);
    if (file.path().extension() != ".safetensors") {
      directory.write(name, replace(content));
      continue;
    }
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, content.data(), sizeof bytes);
    std::string header = replace(content.substr(8, bytes));
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    directory.write(name, std::string(reinterpret_cast<const char*>(&length), 8) + header +
                              content.substr(8 + bytes));
  }
}

/// Overwrites elements of a tensor, from its element `first` on. \pre one file of weights
template <class T>
void change_tensor(const TempDirectory& directory, const std::string& name, std::size_t first,
                   const std::vector<T>& elements) {
  std::string content = directory.read("model.safetensors");
  const auto tensors =
      parse_safetensors(std::as_bytes(std::span(content)), "model.safetensors").value();
  const auto* const start = reinterpret_cast<const std::byte*>(content.data());
  std::memcpy(&content[tensors.at(name).bytes.data() - start + first * sizeof(T)], elements.data(),
              elements.size() * sizeof(T));
  directory.write("model.safetensors", content);
}

inline std::string error_of(const TempDirectory& directory) {
  const auto loaded = Transformer::load(directory.path());
  return loaded ? "no error" : loaded.error().text;
}

inline std::string error_with(const char* model, const nlohmann::json& changes) {
  const TempDirectory directory(kGolden / model);
  change_config(directory, changes);
  return error_of(directory);
}

/// The error of a model in which tensors were renamed.
inline std::string error_with_renamed(const char* model, const std::string& from,
                                      const std::string& to) {
  const TempDirectory directory(kGolden / model);
  rename_tensors(directory, from, to);
  return error_of(directory);
}

}  // namespace kvhive
