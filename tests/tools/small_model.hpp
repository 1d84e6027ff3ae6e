#pragma once
// Half of the demo model: its tokens are exactly determined, and others than the whole one's.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_file.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// The demo model with its first layers only, of four: with two a block has twice as many tokens.
class SmallModel {
 public:
  explicit SmallModel(int layers = 2) {
    namespace fs = std::filesystem;
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"})
      fs::copy_file(fs::path(kDemoModel) / name, directory_.path() / name);
    Json config = read_json_object(fs::path(kDemoModel) / "config.json").value();
    config["num_hidden_layers"] = layers;
    std::ofstream(directory_.path() / "config.json") << config.dump(1);
  }
  std::string path() const { return directory_.path().string(); }

 private:
  TempDirectory directory_;
};

}  // namespace kvhive::testing
