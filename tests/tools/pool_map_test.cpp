// `kvhive pool map` beside a real daemon.

#include <fstream>
#include <iterator>

#include "tests/support/temp_directory.hpp"
#include "tests/tools/pseudo_terminal.hpp"
#include "tests/tools/stopped_engine.hpp"

namespace kvhive::testing {
namespace {

Json map_of(const Daemon& daemon, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"pool", "map", "--format", "json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return daemon.cli(arguments).json();
}

/// Blocks of this name in the map's legend.
int in_legend(const Json& map, const std::string& name) {
  for (const Json& entry : map["legend"])
    if (entry["name"] == name) return entry["blocks"];
  return -1;
}

TEST(CliPoolMap, AgreesWithPoolStatAfterARequest) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "16M", "--swap-space", "4M"});
  ASSERT_EQ(daemon.cli({"generate", "--prompt", passage(0, 1500), "--max-tokens", "2"}).exit_code,
            0);
  ASSERT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
  const Json tiers = daemon.stat()["tiers"], map = map_of(daemon);
  const auto in_both = [&](const char* name) {
    return tiers["device"][name].get<int>() + tiers["host"][name].get<int>();
  };
  EXPECT_GT(in_both("idle"), 5);
  EXPECT_EQ(in_legend(map, "idle (cached)"), in_both("idle"));
  EXPECT_EQ(in_legend(map, "held by one"), in_both("held") - in_both("shared"));
  EXPECT_EQ(in_legend(map, "free"), in_both("free"));
  ASSERT_EQ(map["tiers"].size(), 2u);
  EXPECT_EQ(map["blocks_per_cell"], 1);
  for (const Json& tier : map["tiers"])
    EXPECT_EQ(tier["cells"].size(),
              tiers[tier["tier"].get<std::string>()]["blocks"].get<std::size_t>());

  const Json ages = map_of(daemon, {"--by", "age"});
  EXPECT_GT(in_legend(ages, "idle, evicted next"), 0);
  const Json coarse = map_of(daemon, {"--blocks-per-cell", "64"});
  std::size_t blocks = 0;
  for (const Json& cell : coarse["tiers"][0]["cells"])
    for (const auto& [name, count] : cell["counts"].items()) blocks += count.get<std::size_t>();
  EXPECT_EQ(blocks, tiers["device"]["blocks"].get<std::size_t>());
}

TEST(CliPoolMap, ShowsWhichEngineHoldsBlocks) {
  const Daemon daemon;
  Client client = daemon.connect(1);
  const auto number = client.submit(request_of(passage(0, 2000), 1000));
  ASSERT_TRUE(number.has_value()) << number.error().text;
  while (client.read(*number)->tokens.empty()) ASSERT_TRUE(client.wait().has_value());
  const StoppedEngine stopped(daemon, 1);  // it holds the request's blocks as long as we look
  const Json map = map_of(daemon, {"--by", "owner"});
  EXPECT_GT(in_legend(map, "engine 1"), 10);
  EXPECT_EQ(in_legend(map, "engine 0"), 0);
  const Json process = daemon.engine(1);
  EXPECT_EQ(in_legend(map, "engine 1"), process["held_device_blocks"].get<int>());
}

TEST(CliPoolMap, WorksWhileTheKeeperIsStopped) {
  const Daemon daemon;
  ASSERT_EQ(daemon.cli({"generate", "--prompt", "And God said", "--max-tokens", "30"}).exit_code,
            0);
  const std::string before = daemon.cli({"pool", "map"}).out;
  EXPECT_NE(before.find("demo"), std::string::npos) << before;
  signal_process(daemon.keeper(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.keeper()) == 'T'; }));
  const CommandResult result = daemon.cli({"pool", "map"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("kill -CONT"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.substr(result.out.find('\n')), before.substr(before.find('\n')))
      << "the same blocks; only the model's name is missing";
  signal_process(daemon.keeper(), SIGCONT);
}

TEST(CliPoolMap, FitsAScreenAndHasNoColoursInAPipe) {
  const Daemon daemon({"--kv-cache-memory-bytes", "256M"});
  const std::string text = daemon.cli({"pool", "map"}).out;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 23);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_NE(text.find("one cell = "), std::string::npos);
}

TEST(CliPoolMap, WritesPictures) {
  const Daemon daemon;
  const TempDirectory directory;
  const std::string png = (directory.path() / "map.png").string(),
                    svg = (directory.path() / "map.svg").string();
  const CommandResult result = daemon.cli({"pool", "map", "--png", png, "--svg", svg});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const auto content = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(content(png).substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(content(svg).substr(0, 4), "<svg");
  EXPECT_NE(content(svg).find("by state"), std::string::npos);

  const CommandResult nowhere = daemon.cli({"pool", "map", "--png", "/nonexistent/map.png"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_NE(nowhere.err.find("--png '/nonexistent/map.png' could not be written: No such file"),
            std::string::npos)
      << nowhere.err;
  const CommandResult full = daemon.cli({"pool", "map", "--svg", "/dev/full"});
  EXPECT_NE(full.err.find("No space left on device"), std::string::npos) << full.err;
}

TEST(CliPoolMap, RefusesWhatCannotBeDrawn) {
  const Daemon daemon;
  const CommandResult dense = daemon.cli({"pool", "map", "--dense"});
  EXPECT_EQ(dense.exit_code, 1);
  EXPECT_NE(dense.err.find("--dense needs a terminal with colours"), std::string::npos)
      << dense.err;
  const CommandResult by = daemon.cli({"pool", "map", "--by", "colour"});
  EXPECT_NE(by.err.find("state, owner, domain, age"), std::string::npos) << by.err;
  EXPECT_EQ(daemon.cli({"pool", "map", "--blocks-per-cell", "-1"}).exit_code, 1);
}

/// What `kvhive pool map` prints on a terminal.
std::string on_terminal(const Daemon& daemon, std::vector<std::string> more,
                        const BeforeExec& before_exec = {}) {
  std::vector<std::string> command = {program("kvhive"), "pool", "map", "--socket",
                                      daemon.socket()};
  command.insert(command.end(), more.begin(), more.end());
  PseudoTerminal terminal(command, 100, 40, before_exec);
  EXPECT_EQ(terminal.wait_for_end(), 0);
  return terminal.printed();
}

TEST(CliPoolMap, OnATerminalLettersHaveColoursUnlessNoneAreWanted) {
  const Daemon daemon;
  ASSERT_EQ(daemon.cli({"generate", "--prompt", passage(0, 1500), "--max-tokens", "2"}).exit_code,
            0);
  const std::string coloured = on_terminal(daemon, {});
  EXPECT_NE(coloured.find("\033[0;48;5;"), std::string::npos);
  EXPECT_NE(coloured.find("mIII"), std::string::npos) << "a letter on the colour\n" << coloured;
  const std::string none = on_terminal(daemon, {}, [] { setenv("NO_COLOR", "1", 1); });
  EXPECT_EQ(none.find('\033'), std::string::npos) << none;
  EXPECT_NE(none.find("III"), std::string::npos);
  EXPECT_EQ(on_terminal(daemon, {}, [] { setenv("TERM", "dumb", 1); }).find('\033'),
            std::string::npos);
  EXPECT_NE(on_terminal(daemon, {"--dense"}).find("\xE2\x96\x80"), std::string::npos);
}

}  // namespace
}  // namespace kvhive::testing
