#include "tools/program/command_line.hpp"

#include <cstdio>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "config/choices.hpp"
#include "tools/program/completion.hpp"
#include "tools/program/help_format.hpp"
#include "tools/program/manual.hpp"
#include "tools/program/option_text.hpp"
#include "tools/program/version.hpp"

namespace kvhive {
namespace {

/// The command that the arguments name, as far as they were understood.
const CLI::App& command_of(const CLI::App& app) {
  const CLI::App* command = &app;
  for (auto below = command->get_subcommands(); !below.empty(); below = command->get_subcommands())
    command = below.front();
  return *command;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent != nullptr ? full_name(*parent) + " " : std::string()) + command.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(app))
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  return names;
}

std::string list_of(const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  return joined(views, ", ");
}

std::string unknown_text(const std::string& what, const std::string& wanted,
                         const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string text = "unknown " + what + " '" + wanted + "'; ";
  const std::string_view nearest = nearest_name(wanted, views);
  if (!nearest.empty()) return text + "did you mean '" + std::string(nearest) + "'?";
  return text + "use one of " + list_of(names);
}

/// What is wrong with an argument that nothing takes.
std::string unexpected_text(const CLI::App& command, const std::string& argument) {
  if (argument.rfind("--", 0) == 0 && argument.size() > 2)
    return unknown_text("option", argument.substr(2, argument.find('=') - 2),
                        option_names(command));
  if (const auto names = command_names(command); !names.empty())
    return unknown_text("command", argument, names);
  return "unexpected '" + argument + "'; see " + full_name(command) + " --help";
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : CLI::App(description, program) {
  formatter(std::make_shared<HelpFormat>());
  set_help_flag("-h,--help", "print this help");
  set_version_flag("--version", version_text(program),
                   "print the version, the version of the control protocol and that of the pool's "
                   "format");
  option_defaults()->always_capture_default();
}

std::optional<int> CommandLine::read(int argc, char** argv) {
  if (argc == 3 && argv[1] == std::string_view("--generate")) {
    const bool is_manual = argv[2] == std::string_view("man");
    std::printf("%s", (is_manual ? manual_page(*this) : bash_completion(*this)).c_str());
    return 0;
  }
  try {
    parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return explain(error);
    std::ostringstream text;  // CLI11 would flush standard output and drop the error
    exit(error, text, text);
    std::printf("%s", text.str().c_str());
    return 0;
  }
}

int CommandLine::explain(const CLI::ParseError& error) const {
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool is_extra = code == CLI::ExitCodes::ExtrasError;
  const CLI::App& command = command_of(*this);
  const std::vector<std::string> extras = remaining(true);
  std::string text = std::string(error.what()) + "; see " + full_name(command) + " --help";
  const bool lacks_command =
      code == CLI::ExitCodes::RequiredError && !command_names(command).empty();
  if (!extras.empty() && (lacks_command || is_extra))
    text = unexpected_text(command, extras.front());
  else if (lacks_command)
    text = "give a command: " + list_of(command_names(command)) + "; see " + full_name(command) +
           " --help";
  std::fprintf(stderr, "%s: %s\n", get_name().c_str(), text.c_str());
  return 1;
}

}  // namespace kvhive
