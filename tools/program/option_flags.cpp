#include "tools/program/option_flags.hpp"

#include <algorithm>

#include "tools/program/option_text.hpp"

namespace kvhive {
OptionFlags::OptionFlags(CLI::App& app) {
  app.add_option(
         "--config", file_,
         "TOML file with options of the names below, but for those that only a flag can say "
         "(detach); flags win over it")
      ->type_name("FILE");
  for (const OptionField& field : option_fields()) add(app, field);
}

OptionFlags::OptionFlags(CLI::App& app, std::initializer_list<std::string_view> names) {
  for (const OptionField& field : option_fields())
    if (std::find(names.begin(), names.end(), field.name) != names.end()) add(app, field);
}

void OptionFlags::add(CLI::App& app, const OptionField& field) {
  Flag& flag = flags_.emplace_back();
  flag.field = &field;
  flag.option = app.add_option("--" + std::string(field.name), flag.text, std::string(field.help));
  describe(*flag.option, field);
  if (field.is_list) flag.option->join(',');
  if (field.type.kind == ValueKind::truth) flag.option->expected(0, 1);
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

Expected<Options> options_from_words(std::vector<std::string> words) {
  CLI::App app;
  const OptionFlags flags(app);
  app.get_option("--config")->take_last();
  app.add_flag("--detach");
  std::reverse(words.begin(), words.end());  // as the parser wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return failure(Errc::bad_argument, error.what());
  }
  return flags.options();
}

}  // namespace kvhive
