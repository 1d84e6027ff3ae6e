#pragma once
// A flag with a few named values, read into an enum (config/choices.hpp).

#include <CLI/CLI.hpp>
#include <string>

#include "config/choices.hpp"
#include "tools/program/option_text.hpp"

namespace kvhive {

/// \param target  an Enum, or std::optional of one; must outlive the parsing
template <NamedEnum Enum, class Target>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, Target& target,
                        const std::string& help) {
  const auto set = [&target, flag](const std::string& text) {
    const auto value = value_named<Enum>(text);
    if (!value)
      throw CLI::ValidationError(
          flag, "'" + text + "' is unknown; use one of " + joined(names_of(Enum{}), ", "));
    target = *value;
  };
  return app.add_option_function<std::string>(flag, set, help)
      ->type_name("{" + joined(names_of(Enum{}), ",") + "}");
}

}  // namespace kvhive
