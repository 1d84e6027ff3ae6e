#pragma once
// Options as command-line flags: one for each row of config/option_table.hpp, and --config for the
// options file. Flags win over the file.

#include <CLI/CLI.hpp>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "config/option_table.hpp"

namespace kvhive {

class OptionFlags {
 public:
  /// Adds all options, and --config. Stays where it is while `app` parses.
  explicit OptionFlags(CLI::App& app);
  /// Adds only the options named.
  OptionFlags(CLI::App& app, std::initializer_list<std::string_view> names);
  OptionFlags(const OptionFlags&) = delete;
  OptionFlags& operator=(const OptionFlags&) = delete;

  /// What the file says, then what the flags say; ranges are not checked yet. Call after parsing.
  /// Errors name the flag, or the file and its key.
  [[nodiscard]] Expected<Options> options() const;

 private:
  struct Flag {
    const OptionField* field = nullptr;
    CLI::Option* option = nullptr;
    std::string text;
  };
  void add(CLI::App& app, const OptionField& field);

  std::string file_;
  std::deque<Flag> flags_;  ///< the parser writes to `text`, which must not move
};

/// The options that these words say: kvhived's command line without its first word, or what
/// to_flags() writes. The last --config counts.
[[nodiscard]] Expected<Options> options_from_words(std::vector<std::string> words);

}  // namespace kvhive
