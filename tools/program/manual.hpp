#pragma once
// The manual page of a program, from the same definitions as --help.

#include <CLI/CLI.hpp>
#include <string>

namespace kvhive {

/// The page in section 1, as input for groff's man macros: options and all commands.
std::string manual_page(const CLI::App& app);

}  // namespace kvhive
