#include "tools/program/option_flags.hpp"

#include <cstdio>

namespace kvhive {
namespace {

int complain(const CLI::App& app, const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), text.c_str());
  return 1;
}

/// What is wrong with the first argument that no option takes.
std::string unexpected_text(const CLI::App& app) {
  for (const std::string& extra : app.remaining()) {
    if (extra.rfind("--", 0) != 0) continue;
    const auto known = find_option(extra.substr(2, extra.find('=') - 2));
    return known ? "unexpected " + extra : known.error().text;
  }
  return "unexpected '" + app.remaining().front() + "'; see --help";
}

}  // namespace

OptionFlags::OptionFlags(CLI::App& app) {
  app.add_option("--config", file_, "TOML file with any of the options below")->option_text("FILE");
  for (const OptionField& field : option_fields()) add(app, field);
  app.set_help_flag("-h,--help", "print this help");
}

OptionFlags::OptionFlags(CLI::App& app, std::initializer_list<std::string_view> names) {
  for (const OptionField& field : option_fields())
    if (std::find(names.begin(), names.end(), field.name) != names.end()) add(app, field);
}

void OptionFlags::add(CLI::App& app, const OptionField& field) {
  Flag& flag = flags_.emplace_back();
  flag.field = &field;
  flag.option = app.add_option("--" + std::string(field.name), flag.text, std::string(field.help));
  if (field.type.kind == ValueKind::truth) flag.option->expected(0, 1)->default_str("true");
}

Expected<Options> OptionFlags::options() const {
  Options options;
  if (!file_.empty())
    if (auto loaded = load_options(options, file_); !loaded) return forward_error(loaded);
  for (const Flag& flag : flags_) {
    if (flag.option->count() == 0) continue;
    const bool is_bare = flag.text.empty() && flag.field->type.kind == ValueKind::truth;
    if (auto set = set_option(options, *flag.field, is_bare ? "true" : flag.text); !set)
      return failure(set.error().code, "--" + set.error().text);
  }
  return options;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ExtrasError&) {
    return complain(app, unexpected_text(app));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return complain(app, std::string(error.what()) + "; see --help");
  }
}

}  // namespace kvhive
