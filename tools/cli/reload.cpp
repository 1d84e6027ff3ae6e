// kvhive reload: a running daemon gets the options that have changed in its file, as far as they
// may change while it runs.

#include <cstdio>
#include <filesystem>
#include <memory>

#include "config/domains/domain_rules.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/program/option_flags.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// The options as the daemon's command line and its file say them now.
/// \param file  instead of the file that the command line names; empty = that
Expected<Options> options_now(const Json& daemon, const std::string& file) {
  auto words = daemon.at("command").get<std::vector<std::string>>();
  words.erase(words.begin());
  if (!file.empty())
    words.insert(words.end(), {"--config", std::filesystem::absolute(file).string()});
  // What the command line names is to be found from where the daemon was started.
  std::error_code unknown;
  std::filesystem::current_path(daemon.at("directory").get<std::string>(), unknown);
  auto options = options_from_words(std::move(words));
  if (options && !options->log_file.empty())  // as the daemon has done
    options->log_file = std::filesystem::absolute(options->log_file);
  return options;
}

/// With users and groups by their numbers, if all are known: so the keeper has not to look them up,
/// and another way to write the same is no change.
Options with_known_numbers(Options options) {
  if (auto rules = with_numbers(options.domains)) options.domains = std::move(*rules);
  return options;
}

/// The options that have changed, by name. Error: some need a restart; it names all of them.
Expected<Json> changes(const Options& before, const Options& now) {
  Json changed = Json::object();
  std::string fixed;
  int fixed_count = 0;
  for (const OptionField& field : option_fields()) {
    const std::string text = field.type.format(now);
    if (text == field.type.format(before)) continue;
    // The daemon has filled these in.
    if (text.empty() && (field.name == "socket" || field.name == "log-file")) continue;
    if (may_change(field.name)) {
      changed[std::string(field.name)] = text;
      continue;
    }
    fixed += (fixed_count++ == 0 ? "" : "; ") + std::string(field.name) + ": '" + text +
             "' instead of '" + field.type.format(before) + "'";
  }
  if (fixed_count != 0)
    return failure(Errc::unsupported, fixed + (fixed_count == 1 ? " takes" : ": they take") +
                                          " a restart of the daemon; nothing was changed");
  return changed;
}

Expected<void> reload(const CommonFlags& flags, const std::string& file) {
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::fail);
  if (!inspector) return forward_error(inspector);
  const auto status = inspector->status();
  if (!status) return forward_error(status);
  const auto before = options_from_words((*status)["flags"]);
  if (!before) return forward_error(before);
  const auto now = options_now((*status)["started"], file);
  if (!now) return forward_error(now);
  if (const auto known = with_numbers(now->domains); !known) return forward_error(known);
  const auto changed = changes(with_known_numbers(*before), with_known_numbers(*now));
  if (!changed) return forward_error(changed);
  if (!changed->empty())
    if (auto done = inspector->order({.what = Order::What::reload}, *changed, kAnswerMs); !done)
      return forward_error(done);
  if (flags.output() == Format::json) {
    std::printf("%s\n", changed->dump().c_str());
    return {};
  }
  for (const auto& [name, text] : changed->items())
    std::printf("%s = %s\n", name.c_str(), text.get<std::string>().c_str());
  if (changed->empty()) std::printf("nothing has changed\n");
  return {};
}

}  // namespace

void add_reload(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  auto file = std::make_shared<std::string>();
  std::string names;
  for (const OptionField& field : option_fields())
    if (may_change(field.name)) names += (names.empty() ? "" : ", ") + std::string(field.name);
  CLI::App* command = app.add_subcommand(
      "reload", "have a running daemon read its file of options again; these may change: " + names);
  command->add_option("--config", *file, "this file instead of the one that it was started with")
      ->type_name("FILE");
  flags->add_to(*command);
  command->callback([flags, file, &exit_code] {
    if (auto done = reload(*flags, *file); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
