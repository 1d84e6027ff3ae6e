#include "tools/program/manual.hpp"

#include "tools/program/option_text.hpp"
#include "tools/program/version.hpp"

namespace kvhive {
namespace {

/// Text as groff prints it unchanged: no escapes, no line that would be taken for a request.
std::string escaped(const std::string& text) {
  std::string result = text.empty() || (text[0] != '.' && text[0] != '\'') ? "" : "\\&";
  for (const char letter : text) {
    if (letter == '\\')
      result += "\\e";
    else if (letter == '-')
      result += "\\-";
    else
      result += letter;
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }

std::string option_entry(const CLI::Option& option) {
  const std::string name = name_text(option);
  return ".TP\n" + bold(name) + escaped(usage_text(option).substr(name.size())) + "\n" +
         escaped(option.get_description()) + "\n";
}

/// A command and those below it, by their full names.
std::string command_entries(const CLI::App& app, const std::string& path) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string name = path + " " + command->get_name();
    text += ".SS " + escaped(name) + "\n" + escaped(command->get_description()) + "\n";
    for (const CLI::Option* option : options_of(*command))
      if (option != command->get_help_ptr()) text += option_entry(*option);
    text += command_entries(*command, name);
  }
  return text;
}

std::string see_also(const std::string& name) {
  std::string text;
  for (const char* page : {"kvhive", "kvhived", "kvhive-engine"})
    if (name != page) text += (text.empty() ? ".BR " : " ,\n.BR ") + escaped(page) + " (1)";
  return text + "\n";
}

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
\fBKVHIVE_SOCKET\fR
path of the daemon's socket where \fB\-\-socket\fR is not given
.TP
\fBXDG_RUNTIME_DIR\fR
directory of the default socket, kvhive/kvhived.sock; /run if it is not set
.TP
\fBNO_COLOR\fR
if it is set and not empty, log lines have no colours
)";

constexpr const char* kExitStatus = R"(.SH EXIT STATUS
.TP
0
success
.TP
1
an error, which one line on standard error explains
.TP
141
the reader of standard output closed the pipe
)";

}  // namespace

std::string manual_page(const CLI::App& app) {
  const std::string name = app.get_name(), description = app.get_description();
  const std::string summary = description.substr(description.find(": ") + 2);
  const auto commands = app.get_subcommands({});
  std::string upper = name;
  for (char& letter : upper) letter = letter >= 'a' && letter <= 'z' ? char(letter - 32) : letter;
  std::string page = ".TH " + escaped(upper) + " 1 \"\" \"kvhive " + release() +
                     "\" \"User Commands\"\n.ad l\n.SH NAME\n" + escaped(name) + " \\- " +
                     escaped(summary.substr(0, summary.find_first_of(".;"))) +
                     "\n.SH SYNOPSIS\n.B " + escaped(name) + "\n[options]" +
                     (commands.empty() ? "" : " command [options]") + "\n.SH DESCRIPTION\n" +
                     escaped(summary) + "\n.SH OPTIONS\n";
  for (const CLI::Option* option : options_of(app)) page += option_entry(*option);
  if (!commands.empty()) page += ".SH COMMANDS\n" + command_entries(app, name);
  return page + kEnvironment + kExitStatus + ".SH SEE ALSO\n" + see_also(name);
}

}  // namespace kvhive
