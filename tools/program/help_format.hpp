#pragma once
// The layout of --help: an option's usage on a line of its own, its help below, wrapped.

#include <CLI/CLI.hpp>
#include <string>

namespace kvhive {

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* command) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace kvhive
