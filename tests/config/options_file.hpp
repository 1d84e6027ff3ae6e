#pragma once
// Options read from a TOML file with a given text.

#include <gtest/gtest.h>

#include "config/options.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {

class OptionsFile : public ::testing::Test {
 protected:
  Expected<void> load(const std::string& toml) {
    directory_.write("options.toml", toml);
    return load_options(options, directory_.path() / "options.toml");
  }
  Options options;
  TempDirectory directory_;
};

}  // namespace kvhive
