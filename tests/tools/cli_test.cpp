// Output and exit codes of the `kvhive` commands.

#include <gmock/gmock.h>
#include <unistd.h>

#include <sstream>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

class Cli : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon; }
  static void TearDownTestSuite() { delete daemon_; }
  static inline Daemon* daemon_ = nullptr;
};

TEST_F(Cli, GenerateStreamsTextAndSummarises) {
  const CommandResult result =
      daemon_->cli({"generate", "--prompt", "And God said", "--max-tokens", "12", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_FALSE(result.out.empty());
  EXPECT_NE(result.err.find("12 tokens"), std::string::npos) << result.err;
}

TEST_F(Cli, TheDoctorListsFindingsWithARemedyForEachProblem) {
  const CommandResult result = run("kvhive", {"doctor", "--format", "json"});
  EXPECT_EQ(result.exit_code, 0) << "the tests run on this machine, so nothing is bad";
  std::set<std::string> topics;
  for (const Json& finding : result.json()) {
    topics.insert(finding["topic"]);
    EXPECT_NE(finding["verdict"], "bad") << finding;
    EXPECT_EQ(finding["verdict"] == "good", finding["remedy"] == "") << finding;
  }
  for (const char* topic : {"kernel", "shared memory", "huge pages", "memory", "descriptors",
                            "processors", "page locks", "tokenizers", "GPU"})
    EXPECT_TRUE(topics.contains(topic)) << topic;
}

TEST_F(Cli, GenerateAsJsonHasAllFields) {
  const Json json =
      daemon_
          ->cli({"generate", "--prompt", "And God said", "--max-tokens", "8", "--ignore-eos",
                 "--logprobs", "3", "--engine", "1", "--format", "json"})
          .json();
  EXPECT_EQ(json["token_ids"].size(), 8u);
  EXPECT_EQ(json["engine"], 1);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["logprobs"][0]["top"].size(), 3u);
  EXPECT_EQ(json["logprobs"][0]["top"][0]["token"], json["token_ids"][0])
      << "greedy takes the likeliest";
  for (const char* field :
       {"text", "prompt_tokens", "cached_tokens", "ttft_ms", "tokens_per_second"})
    EXPECT_TRUE(json.contains(field)) << field;
}

TEST_F(Cli, TokenPromptsAndTextPromptsAgree) {
  const Json text = daemon_
                        ->cli({"generate", "--prompt", "In the beginning", "--max-tokens", "8",
                               "--format", "json"})
                        .json();
  ASSERT_EQ(text["prompt_tokens"], 5);
  const Json ids = daemon_
                       ->cli({"generate", "--prompt-tokens", "2046,1904,258,1803,1248",
                              "--max-tokens", "8", "--format", "json"})
                       .json();
  EXPECT_EQ(ids["prompt_tokens"], 5);
  EXPECT_EQ(ids["token_ids"], text["token_ids"]);
}

TEST_F(Cli, ASeedMakesSamplingRepeatableAndNoneDoesNot) {
  const auto sample = [](std::vector<std::string> more) {
    std::vector<std::string> flags = {"generate", "--prompt",     "And God said",  "--max-tokens",
                                      "24",       "--ignore-eos", "--temperature", "1",
                                      "--format", "json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return daemon_->cli(flags).json()["token_ids"];
  };
  EXPECT_EQ(sample({"--seed", "5"}), sample({"--seed", "5"}));
  EXPECT_NE(sample({"--seed", "5"}), sample({"--seed", "6"}));
  EXPECT_NE(sample({}), sample({}));
}

TEST_F(Cli, StopStringsCutTheText) {
  const Json whole = daemon_
                         ->cli({"generate", "--prompt", "In the beginning", "--max-tokens", "24",
                                "--ignore-eos", "--format", "json"})
                         .json();
  const std::string text = whole["text"];
  const std::string stop = text.substr(text.size() / 2, 6);
  const Json cut = daemon_
                       ->cli({"generate", "--prompt", "In the beginning", "--max-tokens", "24",
                              "--ignore-eos", "--stop", stop, "--format", "json"})
                       .json();
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["text"].get<std::string>(), text.substr(0, text.find(stop)));
}

TEST_F(Cli, RulesOfTokensChangeTheAnswer) {
  const auto generate = [](std::vector<std::string> more) {
    std::vector<std::string> flags = {"generate",     "--prompt", "In the beginning",
                                      "--max-tokens", "24",       "--ignore-eos",
                                      "--format",     "json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return daemon_->cli(flags);
  };
  const Json plain = generate({}).json();
  const int first = plain["token_ids"][0];
  EXPECT_NE(
      generate({"--logit-bias", std::to_string(first) + "=-100,7=1.5"}).json()["token_ids"][0],
      first);
  for (const Json& token : generate({"--allowed-token-ids", "300,301"}).json()["token_ids"])
    EXPECT_THAT(token.get<int>(), ::testing::AnyOf(300, 301));
  for (const char* flag : {"--presence-penalty", "--frequency-penalty", "--repetition-penalty"})
    EXPECT_NE(generate({flag, "1.9"}).json()["token_ids"], plain["token_ids"]) << flag;
  const Json stopped =
      generate({"--stop", "e", "--include-stop", "--min-tokens", "5", "--bad-word", "God"}).json();
  EXPECT_THAT(stopped["text"].get<std::string>(), ::testing::EndsWith("e"));
  EXPECT_GT(stopped["token_ids"].size(), 5u);
  for (const auto& [flags, text] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--logit-bias", "7"}, "--logit-bias '7' is not a list of tokens with biases"},
           {{"--logit-bias", "7=1,"}, "--logit-bias '7=1,' is not"},
           {{"--min-tokens", "25"}, "--min-tokens is 25; use 0..24"},
           {{"--frequency-penalty", "3"}, "frequency_penalty = 3"},
           {{"--allowed-token-ids", "99999999"}, "allowed_token_ids: token id 99999999"}}) {
    const auto refused = generate(flags);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, HasSubstr(text));
  }
}

TEST_F(Cli, PoolCommandsAgreeWithEachOther) {
  ASSERT_EQ(
      daemon_->cli({"generate", "--prompt", std::string(400, 'a'), "--max-tokens", "2"}).exit_code,
      0);
  const Json stat = daemon_->stat();
  const Json device = stat["tiers"]["device"];
  EXPECT_EQ(device["free"].get<int>() + device["filling"].get<int>() + device["held"].get<int>() +
                device["idle"].get<int>() + device["retired"].get<int>(),
            device["blocks"].get<int>());
  const Json blocks =
      daemon_->cli({"pool", "blocks", "--state", "idle", "--limit", "100000", "--format", "json"})
          .json();
  EXPECT_EQ(blocks.size(), device["idle"].get<std::size_t>());
  const Json fsck = daemon_->cli({"pool", "fsck", "--privileged", "--format", "json"}).json();
  EXPECT_EQ(fsck["clean"], true);
  EXPECT_EQ(fsck["ready"], device["idle"]);
  EXPECT_EQ(daemon_->procs()["processes"].size(), 2u);
}

TEST_F(Cli, HumanTablesNameWhatTheyShow) {
  EXPECT_NE(daemon_->cli({"pool", "stat"}).out.find("device"), std::string::npos);
  EXPECT_NE(daemon_->cli({"pool", "procs"}).out.find("engine 1"), std::string::npos);
  EXPECT_NE(daemon_->cli({"pool", "blocks"}).out.find("blocks shown"), std::string::npos);
  EXPECT_NE(daemon_->cli({"pool", "fsck"}).out.find("clean"), std::string::npos);
}

TEST_F(Cli, WhyTellsWhatIsCachedAndWhatIsNot) {
  const std::string prompt =
      "In the beginning God created the heaven and the earth. And the earth "
      "was without form, and void; and darkness was upon the face of the "
      "deep. And the Spirit of God moved upon the face of the waters.";
  const Json before = daemon_->cli({"pool", "why", prompt, "--format", "json"}).json();
  ASSERT_GT(before["blocks"].size(), 1u);
  EXPECT_EQ(before["blocks"][0]["verdict"], "never_seen");
  EXPECT_EQ(before["computed_from_block"], 0);
  ASSERT_EQ(daemon_->cli({"generate", "--prompt", prompt, "--max-tokens", "2"}).exit_code, 0);
  const Json after = daemon_->cli({"pool", "why", prompt, "--format", "json"}).json();
  EXPECT_EQ(after["blocks"][0]["verdict"], "present");
  const Json again =
      daemon_->cli({"generate", "--prompt", prompt, "--max-tokens", "2", "--format", "json"})
          .json();
  EXPECT_EQ(after["computed_from_token"], again["cached_tokens"])
      << "the command predicts what the engine finds";
  EXPECT_EQ(after["tokens"], again["prompt_tokens"]);
  const CommandResult human = daemon_->cli({"pool", "why", prompt});
  EXPECT_NE(human.out.find("present on the device"), std::string::npos) << human.out;
  EXPECT_NE(human.out.find("Generation computes from block"), std::string::npos) << human.out;
  EXPECT_EQ(daemon_->cli({"pool", "why"}).exit_code, 1);
}

TEST(CliWhy, NamesTheEngineThatEvicted) {
  Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "3M", "--max-model-len", "512"});
  const auto tokens = [](int first) {
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += (i == 0 ? "" : ",") + std::to_string(300 + (first + i * 7) % 1500);
    return text;
  };
  for (int i = 0; i < 8; ++i)
    ASSERT_EQ(
        daemon.cli({"generate", "--prompt-tokens", tokens(i * 11), "--max-tokens", "2"}).exit_code,
        0);
  const Json first =
      daemon.cli({"pool", "why", "--prompt-tokens", tokens(0), "--format", "json"}).json();
  ASSERT_EQ(first["blocks"][0]["verdict"], "evicted") << first;
  EXPECT_EQ(first["blocks"][0]["by"], "engine 0");
  EXPECT_LT(first["blocks"][0]["seconds_ago"].get<double>(), 120);
  EXPECT_NE(first["reason"].get<std::string>().find("was evicted"), std::string::npos);
}

TEST_F(Cli, TheInspectorNeedsNeitherStewardNorEngines) {
  const Json all = daemon_->procs();
  std::vector<pid_t> pids = {all["steward"]["pid"].get<pid_t>()};
  for (const Json& engine : all["engines"]) pids.push_back(engine["pid"].get<pid_t>());
  for (const pid_t pid : pids) signal_process(pid, SIGSTOP);
  EXPECT_TRUE(daemon_->fsck_is_clean());
  EXPECT_EQ(daemon_->procs()["processes"].size(), 2u);
  for (const pid_t pid : pids) signal_process(pid, SIGCONT);
}

/// Commands that only read end although the keeper is stopped, and say what is missing.
TEST(CliStoppedKeeper, ThePoolIsReadWithoutIt) {
  const Daemon daemon;
  ASSERT_EQ(daemon.cli({"generate", "--prompt", "And God said", "--max-tokens", "30"}).exit_code,
            0);
  ASSERT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
  const Json before = daemon.stat();
  signal_process(daemon.keeper(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.keeper()) == 'T'; }));
  for (const char* command : {"stat", "procs", "blocks", "fsck"}) {
    const CommandResult result = daemon.cli({"pool", command});
    EXPECT_EQ(result.exit_code, 0) << command << ": " << result.err;
    EXPECT_NE(result.err.find("kill -CONT " + std::to_string(daemon.keeper())), std::string::npos)
        << command << ": " << result.err;
  }
  const Json stat = daemon.stat();
  for (const char* same : {"tiers", "epoch", "prompt_tokens", "generated_tokens"})
    EXPECT_EQ(stat[same], before[same]) << same;
  const Json procs = daemon.procs();
  EXPECT_EQ(procs["keeper"]["pid"], daemon.keeper());
  EXPECT_EQ(procs["processes"].size(), 2u);
  EXPECT_EQ(procs["engines"].at(0)["state"], "unknown");
  EXPECT_TRUE(daemon.fsck_is_clean());
  signal_process(daemon.keeper(), SIGCONT);
}

TEST(CliStoppedKeeper, CommandsThatNeedItFailNamingTheProcessAndTheRemedy) {
  const Daemon daemon;
  signal_process(daemon.keeper(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.keeper()) == 'T'; }));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"pool", "fsck", "--repair"},
        std::vector<std::string>{"pool", "why", "And God said"}}) {
    const CommandResult result = daemon.cli(command);
    EXPECT_NE(result.exit_code, 0) << command[1];
    EXPECT_NE(result.err.find("kill -CONT " + std::to_string(daemon.keeper())), std::string::npos)
        << result.err;
  }
  signal_process(daemon.keeper(), SIGCONT);
}

TEST(CliProcs, AnEngineThatIsDownIsShownWithItsStateAndRestarts) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M"});
  const auto row = [&](const std::string& words) {
    const std::string table = daemon.cli({"pool", "procs"}).out;
    const std::size_t begin = table.find("engine 0");
    const std::string line = table.substr(begin, table.find('\n', begin) - begin);
    return line.find(words) != std::string::npos;
  };
  EXPECT_TRUE(row("serving"));
  // Killed young again and again, it is restarted after longer and longer pauses.
  pid_t pid = 0;
  for (int death = 0; death < 5; ++death) {
    const auto is_anew = [&] {
      const pid_t now = daemon.pid_of(0);
      const bool is_another = now != 0 && now != pid;
      if (is_another) pid = now;
      return is_another;
    };
    ASSERT_TRUE(eventually(is_anew, kHang));
    signal_process(pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return row("down"); }));
  EXPECT_NE(daemon.cli({"pool", "procs"}).out.find("restarts"), std::string::npos);
}

/// The row of `kvhive pool procs` that begins so; "" = there is none.
std::string row_of(const Daemon& daemon, const std::string& name) {
  std::istringstream table(daemon.cli({"pool", "procs"}).out);
  for (std::string row; std::getline(table, row);)
    if (row.rfind(name + " ", 0) == 0) return row;
  return "";
}

TEST(CliProcs, FrontAndKeeperAreToldApart) {
  const Daemon daemon;
  const std::string front = std::to_string(daemon.pid()), keeper = std::to_string(daemon.keeper());
  EXPECT_THAT(row_of(daemon, "front"), HasSubstr(" " + front + "  running"));
  EXPECT_THAT(row_of(daemon, "keeper"), HasSubstr(" " + keeper + "  serving"));
  signal_process(daemon.pid(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.pid()) == 'T'; }));
  EXPECT_THAT(row_of(daemon, "front"), HasSubstr(" " + front + "  stopped"));
  const CommandResult not_yet = daemon.cli({"stop"});
  EXPECT_EQ(not_yet.exit_code, 1);
  EXPECT_THAT(not_yet.err, HasSubstr("is stopped; let it go on with kill -CONT " + front));
  signal_process(daemon.pid(), SIGCONT);
  signal_process(daemon.keeper(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(daemon.keeper()) == 'T'; }));
  EXPECT_THAT(row_of(daemon, "front"), HasSubstr(" " + front + "  running"));
  EXPECT_THAT(row_of(daemon, "keeper"), HasSubstr(" " + keeper + "  not answering"));
  signal_process(daemon.keeper(), SIGCONT);
}

TEST(CliProcs, AClientsDomainIsShown) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--domains",
                       "team=" + std::to_string(getuid())});
  const Client any = daemon.connect(), of_one = daemon.connect(1);
  const std::string pid = std::to_string(getpid());
  EXPECT_TRUE(eventually([&] {
    return row_of(daemon, "client of engines 0, 1 in domain team").find(pid) != std::string::npos &&
           row_of(daemon, "client of engine 1 in domain team").find(pid) != std::string::npos;
  }));
}

TEST_F(Cli, LayoutComputesAsVllmDoes) {
  const Json layout = run("kvhive", {"layout", "--model", kDemoModel, "--kv-cache-memory-bytes",
                                     "64M", "--swap-space", "1M", "--format", "json"})
                          .json();
  EXPECT_EQ(layout["page_bytes"], 2 * 16 * 2 * 64 * 2)
      << "K and V x block size x kv heads x head size x bf16";
  EXPECT_EQ(layout["block_bytes"], 4 * 2 * 16 * 2 * 64 * 2) << "4 layers";
  EXPECT_EQ(layout["device_blocks"], (64 << 20) / (4 * 2 * 16 * 2 * 64 * 2));
  EXPECT_EQ(layout["host_blocks"], 32);
}

TEST(CliStop, StopEndsTheDaemonAndLeavesNothing) {
  Daemon daemon;
  EXPECT_EQ(daemon.cli({"stop"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
  EXPECT_NE(daemon.cli({"pool", "stat"}).exit_code, 0);
}

}  // namespace
}  // namespace kvhive::testing
