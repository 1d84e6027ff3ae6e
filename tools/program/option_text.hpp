#pragma once
// What help, manual page and completion say of a command-line option, so that all three say the
// same.

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option_table.hpp"

namespace kvhive {

std::string joined(std::span<const std::string_view> names, std::string_view separator);

/// Shows in `option` what its row says: the form of a value, the default.
void describe(CLI::Option& option, const OptionField& field);

/// The row's help with range, and what 0 stands for.
std::string help_text(const OptionField& field);

/// "--device"; "TRACE" for a positional argument.
std::string name_text(const CLI::Option& option);

/// The form of a value: "{auto,cpu,cuda}", "FILE", "DIR", "SIZE", "TOKENS", "N"; empty for an
/// option without one.
std::string value_text(const CLI::Option& option);

/// The default as it would be written; empty = none that could be shown.
std::string default_text(const CLI::Option& option);

/// "--device {auto,cpu,cuda} [auto]"
std::string usage_text(const CLI::Option& option);

/// The values between the braces of value_text(); empty if any value is allowed.
std::vector<std::string> choices_of(const CLI::Option& option);

/// All options of `app` that are shown, positional arguments first.
std::vector<const CLI::Option*> options_of(const CLI::App& app);

}  // namespace kvhive
