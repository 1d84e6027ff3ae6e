// kvhive doctor: whether this machine has what a daemon needs and what makes one fast, and what to
// do about the rest.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/command.hpp"
#include "tools/cli/findings.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

/// Prints the findings. False = there is one with which a daemon does not run.
bool examine(const CommonFlags& flags) {
  bool is_fit = true;
  nlohmann::json json = nlohmann::json::array();
  Table table;
  for (const Finding& f : examine_machine()) {
    is_fit = is_fit && f.fitness != Fitness::bad;
    json.push_back({{"topic", f.topic},
                    {"value", f.value},
                    {"verdict", to_string(f.fitness)},
                    {"remedy", f.remedy}});
    table.add({std::string(to_string(f.fitness)), f.topic, f.value, f.remedy});
  }
  if (flags.output() == Format::json)
    std::printf("%s\n", json.dump(2).c_str());
  else
    std::printf("%s", table.text().c_str());
  return is_fit;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "whether this machine has what a daemon needs; exit code 1 if something is missing");
  flags->add_format_to(*command);
  command->callback([flags, &exit_code] {
    if (!examine(*flags)) exit_code = 1;
  });
}

}  // namespace kvhive
