#pragma once
// Options as command-line flags: one per field of config/options.hpp, and --config for the file.
// Flags win.

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "config/options.hpp"

namespace kvhive {

class OptionFlags {
 public:
  explicit OptionFlags(CLI::App& app) {
    app.add_option("--config", file_, "TOML file with any of the options below");
    app.add_option_function<std::string>(
        "--device", [this](const std::string& device) { device_ = device; },
        "cpu (cuda is not there yet)");
    for (const OptionField& field : option_fields()) {
      CLI::Option* option = app.add_option(
          "--" + std::string(field.name), given_[std::string(field.name)], std::string(field.help));
      if (std::holds_alternative<bool Options::*>(field.target))
        option->expected(0, 1)->default_str("true");
    }
    app.set_help_flag("-h,--help", "print this help");
  }

  /// What the file says, then what the flags say; not yet checked. Call after parsing.
  Expected<Options> options() const {
    Options options;
    if (device_ != "cpu")
      return failure(Errc::unsupported, "device: '" + device_ + "' is not there yet; use cpu");
    if (!file_.empty())
      if (auto loaded = load_options(options, file_); !loaded) return forward_error(loaded);
    for (const OptionField& field : option_fields()) {
      const std::string& text = given_.at(std::string(field.name));
      if (text.empty()) continue;
      if (auto set = set_option(options, field, text); !set)
        return failure(set.error().code, "--" + set.error().text);
    }
    return options;
  }

 private:
  std::string file_;
  std::string device_ = "cpu";
  std::map<std::string, std::string> given_;
};

}  // namespace kvhive
