// Command lines of the programs, and what the programs print. Most tests need no daemon.

#include <fcntl.h>
#include <sys/resource.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/unique_fd.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/pseudo_terminal.hpp"
#include "tools/program/command_line.hpp"
#include "tools/program/option_flags.hpp"

namespace kvhive::testing {
namespace {

constexpr const char* kPrograms[] = {"kvhive", "kvhived", "kvhive-engine", "kvhive-steward"};

void expect_one_line(const CommandResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' in: " << result.err;
}

/// Runs a program with the given descriptor as its standard output.
CommandResult run_into(int out, const std::string& name, const std::vector<std::string>& arguments,
                       const BeforeExec& before_exec = {}) {
  int err[2];
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  const pid_t pid = spawn(program(name), arguments, out, err[1], before_exec);
  close(err[1]);
  CommandResult result;
  char piece[4096];
  for (ssize_t got; (got = read(err[0], piece, sizeof piece)) > 0;)
    result.err.append(piece, static_cast<std::size_t>(got));
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

CommandResult run_into_full_device(const std::string& name,
                                   const std::vector<std::string>& arguments) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  return run_into(full.get(), name, arguments);
}

// -- output that cannot be written

TEST(Output, HelpThatCannotBeWrittenIsAnError) {
  for (const char* program : kPrograms)
    expect_one_line(run_into_full_device(program, {"--help"}),
                    {program, "standard output", "No space left on device"});
}

TEST(Output, ACommandWhoseOutputCannotBeWrittenFails) {
  const std::string layout = kDemoModel;
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"doctor"},
           {"layout", "--model", layout, "--kv-cache-memory-bytes", "16M"},
           {"replay", std::string(KVHIVE_TRACES_DIR) + "/small.jsonl", "--blocks", "1000"}})
    expect_one_line(run_into_full_device("kvhive", arguments),
                    {"standard output", "No space left on device"});
}

TEST(Output, APipeWithoutAReaderEndsAProgramQuietly) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  const CommandResult result = run_into(ends[1], "kvhive", {"doctor"}, [] {
    signal(SIGPIPE, SIG_IGN);  // a program may inherit an ignored SIGPIPE from its shell
  });
  close(ends[1]);
  EXPECT_EQ(result.exit_code, 141);
  EXPECT_EQ(result.err, "");
}

TEST(Output, ACommandWhoseAnswerFromADaemonCannotBeWrittenFails) {
  const Daemon daemon({"--kv-cache-memory-bytes", "16M"});
  for (std::vector<std::string> arguments : std::vector<std::vector<std::string>>{
           {"pool", "stat"},
           {"pool", "procs", "--format", "json"},
           {"pool", "blocks"},
           {"pool", "fsck"},
           {"pool", "why", "In the beginning"},
           {"generate", "--prompt", "And God said", "--max-tokens", "4"}}) {
    arguments.insert(arguments.end(), {"--socket", daemon.socket()});
    const CommandResult result = run_into_full_device("kvhive", arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[1];
    EXPECT_NE(result.err.find("standard output could not be written"), std::string::npos)
        << result.err;
  }
}

TEST(Output, DoctorReportsALimitOfFileSizesAndOutlivesIt) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const CommandResult result = run_into(ends[1], "kvhive", {"doctor"}, [] {
    const rlimit one_megabyte{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &one_megabyte);
  });
  close(ends[1]);
  char text[4096] = {};
  EXPECT_GT(read(ends[0], text, sizeof text - 1), 0);
  close(ends[0]);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(std::string(text).find("File too large"), std::string::npos) << text;
}

// -- help, version

TEST(CommandLine, HelpShowsChoicesDefaultsAndUnits) {
  const std::string help = run("kvhived", {"--help"}).out;
  for (const char* text :
       {"--device {auto,cpu,cuda} [auto]", "--block-size TOKENS [16]", "--engines N [1]",
        "--swap-space SIZE [0]", "--model DIR", "--config FILE", "1..1024 tokens",
        "--kv-cache-dtype {auto,float32,bfloat16,float16,fp8,fp8_e4m3,fp8_e5m2,int8} [auto]",
        "--enable-prefix-caching {true,false} [true]", "0 = cores / engines"})
    EXPECT_NE(help.find(text), std::string::npos) << text;
  EXPECT_EQ(help.find("TEXT"), std::string::npos) << help;
}

/// Of what `kvhive` prints on a terminal, in lines that begin so.
std::size_t widest_line(std::vector<std::string> command, unsigned short columns,
                        const std::string& begin = "") {
  command.insert(command.begin(), program("kvhive"));
  PseudoTerminal terminal(command, columns, 24);
  EXPECT_EQ(terminal.wait_for_end(), 0);
  std::istringstream lines(terminal.printed());
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);)  // ends with a carriage return
    if (line.starts_with(begin)) most = std::max(most, line.size() - 1);
  return most;
}

TEST(CommandLine, HelpIsAsWideAsTheTerminalAndNoWider) {
  const auto widest = [](unsigned short columns) {
    return widest_line({"serve", "--help"}, columns, "      ");
  };
  EXPECT_LE(widest(50), 50u);
  EXPECT_GT(widest(200), 70u);
  EXPECT_LE(widest(200), 80u);
}

/// A column of words is wrapped if the terminal is narrower, and stays one line in a pipe.
TEST(CommandLine, TablesAreNoWiderThanTheTerminal) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  const std::vector<std::string> command = {"pool", "stat", "--socket", daemon.socket()};
  EXPECT_LE(widest_line(command, 80, "hit tokens"), 80u);
  EXPECT_LE(widest_line(command, 80, "      "), 80u);
  EXPECT_GT(widest_line(command, 80, "      "), 60u) << "what did not fit stands below";
  EXPECT_GT(widest_line(command, 200, "hit tokens"), 80u);
  const std::string piped = run("kvhive", command).out;
  const char* const whole = "another engine, or an earlier process of this one, had computed\n";
  EXPECT_NE(piped.find(whole), std::string::npos) << piped;
}

TEST(CommandLine, LayoutOfNoMemoryIsRefused) {
  expect_one_line(run("kvhive", {"layout", "--model", kDemoModel, "--kv-cache-memory-bytes", "0"}),
                  {"--kv-cache-memory-bytes '0'", "as in 64M"});
}

TEST(CommandLine, LayoutKnowsTheDaemonsElementTypes) {
  const std::string help = run("kvhive", {"layout", "--help"}).out;
  EXPECT_NE(help.find("fp8,fp8_e4m3,fp8_e5m2,int8"), std::string::npos) << help;
  for (const char* type : {"int8", "fp8"})
    EXPECT_EQ(run("kvhive", {"layout", "--model", kDemoModel, "--kv-cache-memory-bytes", "16M",
                             "--kv-cache-dtype", type})
                  .exit_code,
              0)
        << type;
}

TEST(CommandLine, EveryProgramSaysItsVersion) {
  for (const char* program : kPrograms) {
    const CommandResult result = run(program, {"--version"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.out.find(program), 0u) << result.out;
    for (const char* part : {"control protocol ", "pool format "})
      EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
}

// -- mistyped names

TEST(CommandLine, AMistypedCommandGetsTheNearestOne) {
  expect_one_line(run("kvhive", {"pol", "stat"}), {"'pol'", "did you mean 'pool'"});
  expect_one_line(run("kvhive", {"pool", "sta"}), {"'sta'", "did you mean 'stat'"});
  expect_one_line(run("kvhive", {}), {"give a command: generate, pool"});
}

TEST(CommandLine, ACommandUnlikeAnyOtherGetsTheListAndNoGuess) {
  for (const char* wrong : {"status", "help", "ls"})
    expect_one_line(run("kvhive", {wrong}), {wrong, "use one of generate, pool"});
}

TEST(CommandLine, TokenIdsAreNumbersBetweenCommas) {
  for (const std::string wrong : {"", "1,,2", ",7", "7,", "[1,2]", "1 2", "x", "99999999999"}) {
    expect_one_line(run("kvhive", {"generate", "--prompt-tokens", wrong}),
                    {"--prompt-tokens '" + wrong + "'", "as in 12,7,400"});
    if (wrong.empty()) continue;
    expect_one_line(run("kvhive", {"generate", "--prompt", "x", "--stop-token-ids", wrong}),
                    {"--stop-token-ids '" + wrong + "'", "as in 12,7,400"});
  }
}

TEST(CommandLine, AMistypedOptionGetsTheNearestOne) {
  expect_one_line(run("kvhive", {"pool", "stat", "--sokcet", "x"}),
                  {"'sokcet'", "did you mean 'socket'"});
  expect_one_line(run("kvhive", {"generate", "--promt=x"}), {"'promt'", "did you mean 'prompt'"});
  expect_one_line(run("kvhived", {"--detatch"}), {"'detatch'", "did you mean 'detach'"});
}

TEST(CommandLine, AnUnknownChoiceListsTheKnownOnes) {
  expect_one_line(run("kvhive", {"doctor", "--format", "xml"}), {"'xml'", "human, json"});
}

TEST(CommandLine, OptionsMayStandBeforeTheCommand) {
  const CommandResult json = run("kvhive", {"--format", "json", "doctor"});
  EXPECT_EQ(json.out.substr(0, 1), "[") << json.out;
  const CommandResult later = run("kvhive", {"--format", "json", "doctor", "--format", "human"});
  EXPECT_NE(later.out.substr(0, 1), "[") << "the later value wins";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--socket", "/tmp/kvhive-none", "pool", "stat"},
                                             {"pool", "--socket", "/tmp/kvhive-none", "stat"}})
    expect_one_line(run("kvhive", arguments), {"/tmp/kvhive-none", "kvhived"});
}

TEST(CommandLine, AnEmptyValueIsNotTakenForTheDefault) {
  expect_one_line(run("kvhived", {"--engines", ""}), {"engines", "''"});
}

TEST(CommandLine, AFlagWithoutAValueIsTrue) {
  char name[] = "kvhive-engine", flag[] = "--enforce-eager",
       other[] = "--enable-prefix-caching=false";
  char* arguments[] = {name, flag, other, nullptr};
  CommandLine app("kvhive-engine", "a program with all options");
  OptionFlags flags(app);
  ASSERT_FALSE(app.read(3, arguments).has_value());
  const auto options = flags.options();
  ASSERT_TRUE(options.has_value()) << options.error().text;
  EXPECT_TRUE(options->enforce_eager);
  EXPECT_FALSE(options->enable_prefix_caching);
}

TEST(CommandLine, AnOptionsFileThatIsADirectoryIsNamed) {
  expect_one_line(run("kvhived", {"--config", "/tmp"}), {"/tmp is a directory", "TOML file"});
}

// -- prompts

TEST(GenerateFlags, AnEngineBelowZeroIsRefused) {
  expect_one_line(run("kvhive", {"generate", "--prompt", "a", "--engine", "-1"}),
                  {"--engine is -1", "numbered from 0"});
}

TEST(GenerateFlags, APromptFileThatIsADirectoryIsNamed) {
  expect_one_line(run("kvhive", {"generate", "--prompt-file", "/tmp"}),
                  {"'/tmp' is a directory", "standard input"});
}

TEST(GenerateFlags, APromptMayComeFromStandardInput) {
  const Daemon daemon({"--kv-cache-memory-bytes", "16M"});
  const TempDirectory directory;
  directory.write("prompt", "In the beginning");
  const CommandResult result = run("kvhive",
                                   {"generate", "--prompt-file", "-", "--max-tokens", "4",
                                    "--format", "json", "--socket", daemon.socket()},
                                   [path = (directory.path() / "prompt").string()] {
                                     const int file = open(path.c_str(), O_RDONLY);
                                     if (file < 0 || dup2(file, STDIN_FILENO) < 0) _exit(126);
                                   });
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.json()["prompt_tokens"], 5);
}

/// A prompt of `count` tokens, as ids.
std::string tokens(int count) {
  std::string ids = "300";
  for (int i = 1; i < count; ++i) ids += ",300";
  return ids;
}

TEST(TooLongAPrompt, IsRefusedWithTheLimitAndWhetherItCanBeRaised) {
  const auto refusal = [](std::vector<std::string> flags) {
    const Daemon daemon(std::move(flags));
    return daemon.cli({"generate", "--prompt-tokens", tokens(5000)});
  };
  expect_one_line(refusal({"--kv-cache-memory-bytes", "64M"}),
                  {"4096", "shorten it", "the model has positions for"});
  expect_one_line(refusal({"--num-gpu-blocks-override", "65"}),
                  {"1024", "shorten it", "more memory"});
  expect_one_line(refusal({"--num-gpu-blocks-override", "65", "--max-model-len", "512"}),
                  {"512", "shorten it", "higher --max-model-len"});
}

// -- replay

TEST(ReplayTrace, AWrongLineIsNamedWithAReason) {
  const TempDirectory directory;
  const std::pair<const char*, const char*> lines[] = {
      {"not json", "is not a JSON object"},
      {"[1]", "is not a JSON object"},
      {"{\"input_length\": \"many\", \"hash_ids\": [1]}", "'input_length' is not a number"},
      {"{\"hash_ids\": [1]}", "there is no number 'input_length'"},
      {"{\"input_length\": 5}", "there is no list 'hash_ids' or 'id_runs'"},
      {"{\"input_length\": 5, \"hash_ids\": \"x\"}", "there is no list"},
      {"{\"input_length\": 5, \"id_runs\": [[1]]}", "is not [first id, count]"},
      {"{\"input_length\": 5, \"hash_ids\": [\"x\"]}", "'hash_ids' is not a number"}};
  for (const auto& [line, text] : lines) {
    directory.write("trace.jsonl", std::string(line) + "\n");
    const CommandResult result =
        run("kvhive", {"replay", (directory.path() / "trace.jsonl").string(), "--blocks", "10"});
    expect_one_line(result, {"trace.jsonl line 1", text});
    EXPECT_EQ(result.err.find("json.exception"), std::string::npos) << result.err;
  }
}

// -- colours

/// Runs a program with a terminal as its standard error. Returns what it prints there.
std::string on_terminal(const std::vector<std::string>& arguments, const char* no_color) {
  int master = -1;
  const pid_t child = forkpty(&master, nullptr, nullptr, nullptr);
  if (child == 0) {
    setenv("TERM", "xterm-256color", 1);
    unsetenv("COLORTERM");
    if (no_color != nullptr) setenv("NO_COLOR", no_color, 1);
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = read(master, piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  int status = 0;
  waitpid(child, &status, 0);
  close(master);
  return text;
}

TEST(Colours, AreLeftOutIfNoColorIsSet) {
  const TempDirectory directory;
  // Fails after a few log lines: the model's directory is empty.
  const std::vector<std::string> start = {std::string(KVHIVE_BIN_DIR) + "/kvhived",
                                          "--model",
                                          directory.path().string(),
                                          "--socket",
                                          (directory.path() / "s").string(),
                                          "--log-level",
                                          "trace"};
  const std::string colour = "\033[3";
  EXPECT_NE(on_terminal(start, nullptr).find(colour), std::string::npos);
  EXPECT_NE(on_terminal(start, "").find(colour), std::string::npos) << "empty = not set";
  EXPECT_EQ(on_terminal(start, "1").find(colour), std::string::npos);
}

}  // namespace
}  // namespace kvhive::testing
