// kvhive engine: drains, restarts, adds and removes engines of a running daemon.

#include <cstdio>
#include <memory>

#include "config/domains/rule_text.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/inspector.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
using What = Order::What;

struct EngineFlags {
  CommonFlags common;
  std::string engine;  ///< its number, or "all"
  bool is_at_once = false;
  int timeout_s = 300;
  std::string model;
};

struct Verb {
  What what;
  const char* name;
  const char* done;  ///< "engine 2 (pid 4711) ..."
  const char* help;
};

constexpr Verb kVerbs[] = {
    {What::drain, "drain", "is drained: it has no request, and takes none until it is restarted",
     "have an engine take no more requests, and wait until those that it has are done; the other "
     "engines take what waits there"},
    {What::restart, "restart", "serves",
     "drain an engine, and start it again: with another version of the program, if there is one by "
     "now"},
    {What::add, "add", "serves", "start one more engine"},
    {What::remove, "remove", "is removed", "drain an engine, and end it for good"}};

/// Only a restart leaves all engines there: of all that are to be removed the last would be
/// refused, when the others are gone.
Expected<std::vector<std::uint32_t>> engines_named(const Inspector& inspector, const Verb& verb,
                                                   const std::string& text) {
  std::uint32_t number = 0;
  if (parse_number(number, text)) return std::vector{number};
  if (text != "all" || verb.what != What::restart)
    return failure(Errc::bad_argument, std::string("engine ") + verb.name + ": '" + text +
                                           "' is no number" +
                                           (text == "all" ? ", and only restart takes all" : "") +
                                           "; kvhive pool procs lists the engines");
  const auto status = inspector.status();
  if (!status) return forward_error(status);
  std::vector<std::uint32_t> numbers;
  for (const Json& engine : (*status)["engines"])
    if (engine["state"] != "guest") numbers.push_back(engine["engine"]);
  return numbers;
}

/// What an order that is still under way has come to: engines that cannot be started are down.
std::string still_under_way(const Json& status, const Verb& verb, const EngineFlags& flags,
                            std::uint32_t engine) {
  std::string down;
  for (const Json& one : status["engines"])
    if (one["state"] == "down" && (engine == kAnyEngine || one["engine"] == engine))
      down += (down.empty() ? "" : ", ") + one["engine"].dump();
  std::string state, remedy;
  if (!down.empty()) {
    state = "engine " + down + " is down: it ends as it starts, and the daemon's log says why";
  } else if (engine == kAnyEngine) {
    state = "the new engine does not serve yet";
  } else if (flags.is_at_once) {
    state = "engine " + std::to_string(engine) + " has not come to it";
  } else {
    state = "engine " + std::to_string(engine) + " still has requests, or does not answer";
    if (verb.what != What::drain) remedy = ", and --now does not wait";
  }
  return std::string(verb.name) + ": " + state + "; waited for " + std::to_string(flags.timeout_s) +
         " s; the order stays: kvhive pool procs shows what becomes of it" + remedy;
}

Expected<void> carry_out(const Inspector& inspector, const Verb& verb, const EngineFlags& flags,
                         std::uint32_t engine) {
  const Order order{.what = verb.what,
                    .engine = engine,
                    .is_at_once = flags.is_at_once ? 1u : 0u,
                    .model = FixedText<72>(flags.model)};
  const auto told = inspector.order(order, {}, flags.timeout_s * 1000);
  if (!told) {
    const auto status = inspector.status();
    if (told.error().code != Errc::not_running || !status) return forward_error(told);
    return failure(Errc::not_running, still_under_way(*status, verb, flags, engine));
  }
  if (flags.common.output() == Format::json) {
    std::printf("%s\n", told->dump().c_str());
    return {};
  }
  const int pid = (*told)["pid"];
  std::printf("engine %d%s %s\n", (*told)["engine"].get<int>(),
              pid != 0 ? (" (pid " + std::to_string(pid) + ")").c_str() : "", verb.done);
  std::fflush(stdout);
  return {};
}

Expected<void> run(const Verb& verb, const EngineFlags& flags) {
  auto inspector =
      Inspector::attach(flags.common.socket_path(), Privilege::metadata_only, WithoutKeeper::fail);
  if (!inspector) return forward_error(inspector);
  if (verb.what == What::add) return carry_out(*inspector, verb, flags, kAnyEngine);
  const auto engines = engines_named(*inspector, verb, flags.engine);
  if (!engines) return forward_error(engines);
  for (std::size_t i = 0; i < engines->size(); ++i) {  // one by one, so that the others serve
    auto done = carry_out(*inspector, verb, flags, (*engines)[i]);
    if (done) continue;
    std::string left;
    for (std::size_t next = i + 1; next < engines->size(); ++next)
      left += (left.empty() ? "; not told yet: engine " : ", ") + std::to_string((*engines)[next]);
    return failure(done.error().code, done.error().text + left);
  }
  return {};
}

void add_verb(CLI::App& engine, const Verb& verb, int& exit_code) {
  auto flags = std::make_shared<EngineFlags>();
  CLI::App* command = engine.add_subcommand(verb.name, verb.help);
  if (verb.what == What::add)
    command->add_option("--model", flags->model,
                        "the model that it is to serve, by its name; without: the daemon's first");
  else
    command
        ->add_option(
            "engine", flags->engine,
            verb.what == What::restart ? "its number, or all: one after the other" : "its number")
        ->required();
  if (verb.what == What::restart || verb.what == What::remove)
    command->add_flag("--now", flags->is_at_once,
                      "do not wait for its requests: others go on with them");
  command
      ->add_option("--timeout", flags->timeout_s,
                   "seconds to wait; the order stays when they are over")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  flags->common.add_to(*command);
  command->callback([flags, &verb, &exit_code] {
    if (auto done = run(verb, *flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace

void add_engine(CLI::App& app, int& exit_code) {
  CLI::App* engine =
      app.add_subcommand("engine", "drain, restart, add and remove engines of a running daemon");
  engine->require_subcommand(1);
  for (const Verb& verb : kVerbs) add_verb(*engine, verb, exit_code);
}

}  // namespace kvhive
