#pragma once
// Options as command-line flags: one per field of config/options.hpp, and --config for the file.
// Flags win.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include "config/options.hpp"

namespace kvhive {

class OptionFlags {
 public:
  explicit OptionFlags(CLI::App& app) {
    app.add_option("--config", file_, "TOML file with any of the options below");
    for (const OptionField& field : option_fields()) {
      CLI::Option* option = app.add_option(
          "--" + std::string(field.name), given_[std::string(field.name)], std::string(field.help));
      if (std::holds_alternative<bool Options::*>(field.target))
        option->expected(0, 1)->default_str("true");
    }
    app.set_help_flag("-h,--help", "print this help");
  }

  /// Parses the command line. Nothing = go on; otherwise the exit code, with everything said (help,
  /// or an error in one line that suggests the nearest flag).
  std::optional<int> parse(CLI::App& app, int argc, char** argv) const {
    try {
      app.parse(argc, argv);
      return std::nullopt;
    } catch (const CLI::ExtrasError&) {
      for (const std::string& extra : app.remaining()) {
        if (extra.rfind("--", 0) != 0) continue;
        const auto known = find_option(extra.substr(2, extra.find('=') - 2));
        std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(),
                     known ? ("unexpected " + extra).c_str() : known.error().text.c_str());
        return 1;
      }
      std::fprintf(stderr, "%s: unexpected '%s'; see --help\n", app.get_name().c_str(),
                   app.remaining().front().c_str());
      return 1;
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app.exit(error);
      std::fprintf(stderr, "%s: %s; see --help\n", app.get_name().c_str(), error.what());
      return 1;
    }
  }

  /// What the file says, then what the flags say; not yet checked. Call after parsing.
  Expected<Options> options() const {
    Options options;
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
  std::map<std::string, std::string> given_;
};

}  // namespace kvhive
