// The daemon with its engines on a fake GPU. It must keep the same promises as on the CPU.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/exit_codes.hpp"
#include "tests/support/demo_adapter.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/golden_model.hpp"
#include "tests/tools/several_models.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kOnGpu = {
    "--engines",      "2", "--kv-cache-memory-bytes",  "4M", "--max-model-len", "512",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--device",        "cuda"};

void with_gpu() { setenv("KVHIVE_FAKE_GPU", "", 1); }
void with_gpu_by_ipc() { setenv("KVHIVE_FAKE_GPU", "ipc", 1); }

/// How the GPU's memory is shared: by descriptors, or by a process that keeps it (legacy IPC).
struct Way {
  const char* name;
  void (*with_gpu)();
  bool has_maker;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class GpuEitherWay : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Sharing, GpuEitherWay,
                         ::testing::Values(Way{"ByVmm", with_gpu, false},
                                           Way{"ByIpc", with_gpu_by_ipc, true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// Called in a child: redirects its standard error to `file`.
void write_errors_to(const std::string& file) {
  dup2(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDERR_FILENO);
}

/// All child processes of a daemon.
std::vector<pid_t> processes_of(const Daemon& daemon) {
  return testing::processes_of(daemon.pid());
}

/// The process that keeps the GPU's memory; 0 = there is none.
pid_t maker_of(const Daemon& daemon) {
  const Json status = daemon.status();
  return status.contains("gpu_memory") ? status["gpu_memory"]["pid"].get<pid_t>() : 0;
}

TEST_P(GpuEitherWay, TokensAreTheCpusAndEnginesHitEachOthersBlocks) {
  const GenerateRequest request = request_of(passage(0, 300), 12);
  std::vector<TokenId> on_cpu;
  {
    const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "4M", "--device", "cpu"});
    on_cpu = ids(*daemon.connect().generate(request));
  }
  const Daemon daemon(kOnGpu, GetParam().with_gpu);
  EXPECT_EQ(maker_of(daemon) != 0, GetParam().has_maker);
  EXPECT_EQ(processes_of(daemon).size(), GetParam().has_maker ? 5u : 4u);
  const std::string processes = daemon.cli({"pool", "procs"}).out;
  EXPECT_EQ(processes.find("GPU memory") != std::string::npos, GetParam().has_maker);
  const auto first = daemon.connect(0).generate(request);
  ASSERT_TRUE(first) << first.error().text;
  EXPECT_EQ(ids(*first), on_cpu);
  const auto second = daemon.connect(1).generate(request);
  ASSERT_TRUE(second) << second.error().text;
  EXPECT_EQ(ids(*second), on_cpu);
  EXPECT_EQ(first->cached_tokens, 0u);
  EXPECT_GE(second->cached_tokens, (second->prompt_tokens - 1) / 16 * 16);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, TokensAreTheSameWithGraphsAndWithBatchInvariantProducts) {
  const GenerateRequest request = request_of(passage(0, 300), 12);
  std::vector<std::vector<TokenId>> answers;
  for (const char* flag : {"--enforce-eager=false", "--enforce-eager", "--batch-invariant"}) {
    std::vector<std::string> flags = kOnGpu;
    flags.push_back(flag);
    const Daemon daemon(flags, with_gpu);
    const auto answer = daemon.connect().generate(request);
    ASSERT_TRUE(answer) << answer.error().text;
    answers.push_back(ids(*answer));
    EXPECT_EQ(answers.back(), answers.front()) << flag;
  }
}

/// In f32 on the CPU, in bf16 on the GPU: the demo model's tokens are far enough apart for both.
TEST_P(GpuEitherWay, RequestsWithAdaptersHaveTheTokensOfTheCpu) {
  const DemoAdapter poet{1}, lawyer{2};
  const std::string modules = "poet=" + poet.path() + ",lawyer=" + lawyer.path();
  std::vector<GenerateRequest> requests;
  for (const char* adapter : {"poet", "", "lawyer", "poet"}) {
    requests.push_back(request_of(passage(requests.size() * 40, 200), 8));
    requests.back().adapter = adapter;
  }
  const auto tokens_of = [&](const Daemon& daemon) {
    std::vector<Client> clients;
    clients.push_back(daemon.connect());
    std::vector<std::vector<TokenId>> tokens;
    for (const Progress& done : generate_all(clients, requests)) tokens.push_back(ids(done));
    return tokens;
  };
  std::vector<std::vector<TokenId>> on_cpu;
  {
    const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "4M", "--device", "cpu",
                         "--lora-modules", modules});
    on_cpu = tokens_of(daemon);
  }
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--lora-modules", modules});
  const Daemon daemon(flags, GetParam().with_gpu);
  EXPECT_EQ(tokens_of(daemon), on_cpu);
  signal_process(daemon.engine(0)["pid"], SIGKILL);
  EXPECT_EQ(tokens_of(daemon), on_cpu);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, TokensAreTheSameWithGuesses) {
  const std::string text = passage(0, 60);
  const GenerateRequest request = request_of(text + text, 16);
  std::vector<std::vector<TokenId>> answers;
  for (const char* guesses : {"0", "4"}) {
    std::vector<std::string> flags = kOnGpu;
    flags.insert(flags.end(), {"--num-speculative-tokens", guesses, "--batch-invariant"});
    const Daemon daemon(flags, with_gpu);
    const auto answer = daemon.connect().generate(request);
    ASSERT_TRUE(answer) << answer.error().text;
    answers.push_back(ids(*answer));
    EXPECT_EQ(daemon.stat()["draft_tokens"] > 0, std::string(guesses) != "0");
  }
  EXPECT_EQ(answers[1], answers[0]);
}

/// Each request goes on from the one before.
TEST(Gpu, TokensThatAreAskedForOneByOneAreForkedAndTheSame) {
  constexpr std::uint32_t kTokens = 4;
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--batch-invariant"});
  const Daemon daemon(flags, with_gpu);
  Client client = daemon.connect(0);
  GenerateRequest request = request_of("", kTokens);
  for (TokenId token = 300; token < 321; ++token) request.prompt_tokens.push_back(token);
  request.cache_salt = "another";
  const auto whole = client.generate(request);
  ASSERT_TRUE(whole) << whole.error().text;
  request.cache_salt = "";
  request.max_tokens = 1;
  request.will_be_forked = true;
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < kTokens; ++i) {
    const auto answer = client.generate(request);
    ASSERT_TRUE(answer) << answer.error().text;
    for (auto* list : {&tokens, &request.prompt_tokens}) list->push_back(answer->tokens[0].token);
  }
  EXPECT_EQ(tokens, ids(*whole));
  EXPECT_GT(daemon.stat()["forked_tokens"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, APromptsScoresAreNearTheCpus) {
  const auto scores = [](const std::vector<std::string>& flags, void (*before)()) {
    const Daemon daemon(flags, before);
    const CommandResult said = daemon.cli({"generate", "--prompt", passage(0, 300), "--max-tokens",
                                           "1", "--prompt-logprobs", "2", "--format", "json"});
    EXPECT_EQ(said.exit_code, 0) << said.err;
    return Json::parse(said.out)["prompt_logprobs"];
  };
  const Json on_cpu = scores({"--engines", "1", "--kv-cache-memory-bytes", "4M"}, [] {});
  const Json on_gpu = scores(kOnGpu, with_gpu);  // in steps of 64 tokens
  ASSERT_EQ(on_gpu.size(), on_cpu.size());
  ASSERT_GT(on_gpu.size(), 64u);
  for (std::size_t i = 1; i < on_gpu.size(); ++i) {
    EXPECT_EQ(on_gpu[i]["token"], on_cpu[i]["token"]) << i;
    EXPECT_NEAR(on_gpu[i]["logprob"], on_cpu[i]["logprob"], 0.1) << i;
  }
}

TEST_P(GpuEitherWay, AnEngineThatIsKilledCostsNoHit) {
  const Daemon daemon(kOnGpu, GetParam().with_gpu);
  const GenerateRequest request = request_of(passage(0, 200), 4);
  const auto before = daemon.connect(0).generate(request);
  ASSERT_TRUE(before) << before.error().text;
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGKILL);
  ASSERT_TRUE(eventually(
      [&] {
        const Json engine = daemon.engine(0);
        return !engine.is_null() && engine["pid"] != pid;
      },
      std::chrono::seconds(60)));
  const auto after = daemon.connect(0).generate(request);
  ASSERT_TRUE(after) << after.error().text;
  EXPECT_EQ(ids(*after), ids(*before));
  EXPECT_GE(after->cached_tokens, (after->prompt_tokens - 1) / 16 * 16);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, ALostContextEndsTheEngineAndTheStreamGoesOn) {
  char name[] = "/tmp/kvhive-fault-XXXXXX";
  const std::string directory = mkdtemp(name), fault = directory + "/fault";
  const Daemon daemon(kOnGpu, [&] {
    with_gpu();
    setenv("KVHIVE_FAKE_GPU_FAULT", fault.c_str(), 1);
  });
  const GenerateRequest request = request_of(passage(0, 200), 40);
  const auto expected = daemon.connect(1).generate(request);
  ASSERT_TRUE(expected) << expected.error().text;
  // The next process of engine 0 will lose its device during its first requests.
  const pid_t first = daemon.engine(0)["pid"];
  std::ofstream(fault) << 600;
  signal_process(first, SIGKILL);
  const auto lives_again_after = [&](pid_t pid) {
    return eventually(
        [&] {
          const Json engine = daemon.engine(0);
          return !engine.is_null() && engine["pid"] != pid;
        },
        std::chrono::seconds(60));
  };
  ASSERT_TRUE(lives_again_after(first));
  const pid_t doomed = daemon.engine(0)["pid"];
  ASSERT_FALSE(std::filesystem::exists(fault));
  Client client = daemon.connect(0);
  for (int i = 0; i < 20 && is_alive(doomed); ++i) {
    const auto result = client.generate(request);
    ASSERT_TRUE(result) << result.error().text;
    EXPECT_EQ(ids(*result), ids(*expected));
  }
  EXPECT_FALSE(is_alive(doomed));
  ASSERT_TRUE(lives_again_after(doomed));
  EXPECT_TRUE(daemon.fsck_is_clean());
  std::filesystem::remove_all(directory);
}

/// The blocks are copied out of the device and back into it on the swapper's streams.
TEST(Gpu, EvictedBlocksAreCopiedBackFromTheHostTier) {
  const Daemon daemon(
      {"--engines", "1", "--num-gpu-blocks-override", "20", "--swap-space", "4M", "--max-model-len",
       "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--device", "cuda"},
      with_gpu);
  Client client = daemon.connect();
  const GenerateRequest request = request_of(passage(0, 300), 4);
  const auto before = client.generate(request);
  ASSERT_TRUE(before) << before.error().text;
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(client.generate(request_of(passage(i * 300, 300), 4)));
  const auto after = client.generate(request);
  ASSERT_TRUE(after) << after.error().text;
  EXPECT_EQ(ids(*after), ids(*before));
  EXPECT_GE(after->cached_tokens, (after->prompt_tokens - 1) / 16 * 16);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// The daemon refuses before it is ready, not at the first request.
TEST(Gpu, OptionsTheKernelsDoNotSupportAreRefusedAtTheStart) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name), model = directory / "wide";
  std::filesystem::create_directory(model);
  for (const auto& file : std::filesystem::directory_iterator(kDemoModel))
    std::filesystem::create_symlink(file.path(), model / file.path().filename());
  std::filesystem::remove(model / "config.json");
  Json config = Json::parse(std::ifstream(std::filesystem::path(kDemoModel) / "config.json"));
  config["head_dim"] = 60;
  std::ofstream(model / "config.json") << config;

  struct Unsupported {
    std::string model, flag, said;
  };
  const GoldenModel chunked("llama4");
  for (const auto& [of, flag, said] :
       {Unsupported{kDemoModel, "--block-size=24", "block-size: '24'"},
        Unsupported{chunked.path(), "--block-size=32", "attention_chunk_size of 16"},
        Unsupported{kDemoModel, "--system-call-filter=on", "system-call-filter: 'on'"},
        Unsupported{model, "--max-num-seqs=8", "head size 60"}}) {
    const CommandResult refused = run("kvhived",
                                      {"--model", of, "--socket", directory / "s", "--device",
                                       "cuda", flag, "--log-level", "error"},
                                      with_gpu);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(said));
    EXPECT_FALSE(std::filesystem::exists(directory / "s"));
  }
  std::filesystem::remove_all(directory);
}

/// The keeper need not clean up GPU memory. It lives as long as its descriptors, or as long as the
/// process that made it, which ends with the keeper.
TEST_P(GpuEitherWay, AKilledDaemonTakesItsProcessesAlong) {
  Daemon daemon(kOnGpu, GetParam().with_gpu);
  const std::vector<pid_t> processes = processes_of(daemon);
  daemon.kill();
  for (const pid_t process : processes)
    EXPECT_TRUE(eventually([process] { return !is_alive(process); })) << process;
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(daemon.socket()); }));
}

TEST_P(GpuEitherWay, AStopLeavesNothing) {
  Daemon daemon(kOnGpu, GetParam().with_gpu);
  const std::vector<pid_t> processes = processes_of(daemon);
  daemon.stop();
  for (const pid_t process : processes)
    EXPECT_TRUE(eventually([&] { return !is_alive(process); })) << process;
  EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
}

// -- the process that keeps the memory if descriptors do not

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Waits until a daemon ends by itself, and leaves it a zombie. Returns its exit code; -1 = it has
/// not ended, or by a signal.
int exit_code_of(pid_t daemon) {
  siginfo_t ended{};
  const bool has_ended = eventually([&] {
    return waitid(P_PID, static_cast<id_t>(daemon), &ended, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           ended.si_pid == daemon;
  });
  return has_ended && ended.si_code == CLD_EXITED ? ended.si_status : -1;
}

/// The engines' mappings are undefined after this death: no engine goes on, and none is restarted.
TEST(Gpu, TheDaemonEndsWithTheProcessThatKeepsTheMemory) {
  const TempDirectory directory;
  const std::string words = directory.path() / "words";
  const Daemon daemon(kOnGpu, [&] {
    with_gpu_by_ipc();
    write_errors_to(words);
  });
  ASSERT_TRUE(daemon.connect(0).generate(request_of(passage(0, 100), 4)));
  const std::vector<pid_t> processes = processes_of(daemon);
  const pid_t maker = maker_of(daemon);
  signal_process(maker, SIGKILL);
  EXPECT_EQ(exit_code_of(daemon.pid()), 1);
  // The keeper does not wait for the processes that free channels: a client could delay them.
  for (const pid_t process : processes)
    EXPECT_TRUE(eventually([&] { return !is_alive(process); })) << process;
  EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
  for (const std::string& text :
       {std::string("kept the GPU's memory"), "pid " + std::to_string(maker),
        std::string("signal 9"), std::string("--gpu-memory-sharing vmm")})
    EXPECT_THAT(text_of(words), HasSubstr(text));
}

/// Under MPS a fault ends every context, also that of the process that keeps the memory. That
/// process does no work on the GPU and would not notice, and new engines could never map its
/// memory.
TEST(Gpu, ALostContextOfTheProcessThatKeepsTheMemoryEndsTheDaemon) {
  const TempDirectory directory;
  const std::string words = directory.path() / "words", loss = directory.path() / "loss";
  const Daemon daemon(kOnGpu, [&] {
    with_gpu_by_ipc();
    setenv("KVHIVE_FAKE_GPU_LOSS", loss.c_str(), 1);
    write_errors_to(words);
  });
  Client client = daemon.connect(0);
  ASSERT_TRUE(client.generate(request_of(passage(0, 100), 4)));
  std::ofstream{loss};
  (void)client.submit(request_of(passage(0, 100), 4));
  EXPECT_EQ(exit_code_of(daemon.pid()), 1);
  EXPECT_THAT(text_of(words), HasSubstr("exit code 70 (its context was lost)"));
  EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
}

TEST(Gpu, TheGpuMemorySharingOptionDecidesHowMemoryIsShared) {
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--gpu-memory-sharing", "ipc"});
  {
    const Daemon daemon(flags, with_gpu);
    EXPECT_NE(maker_of(daemon), 0);
    EXPECT_TRUE(daemon.connect(1).generate(request_of("In the beginning", 4)));
  }
  const TempDirectory directory;
  const CommandResult refused =
      run("kvhived",
          {"--model", kDemoModel, "--device", "cuda", "--socket", directory.path() / "s",
           "--gpu-memory-sharing", "vmm", "--log-level", "error"},
          with_gpu_by_ipc);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--gpu-memory-sharing ipc"));
}

TEST(Gpu, AFallBackToIpcIsLogged) {
  const TempDirectory directory;
  const std::string words = directory.path() / "words";
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--socket", directory.path() / "s", "--model", kDemoModel});
  const pid_t daemon = spawn(program("kvhived"), flags, -1, -1, [&] {
    with_gpu_by_ipc();
    write_errors_to(words);
  });
  EXPECT_TRUE(eventually([&] {
    return text_of(words).find("legacy IPC, and one more process keeps it: no descriptors") !=
           std::string::npos;
  }));
  signal_process(daemon, SIGTERM);
  EXPECT_EQ(exit_code_of(daemon), 0);
  waitpid(daemon, nullptr, 0);
}

// -- the start

/// The upload of weights may take minutes. A stopping daemon does not wait for it.
TEST_P(GpuEitherWay, AStopSignalDuringTheUploadEndsTheDaemonAtOnce) {
  const TempDirectory fifos, sockets;
  const std::string stall = fifos.path() / "stall";
  ASSERT_EQ(mkfifo(stall.c_str(), 0600), 0);
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--socket", sockets.path() / "new/s", "--model", kDemoModel,
                             "--log-level", "error"});
  const pid_t daemon = spawn(program("kvhived"), flags, -1, -1, [&] {
    GetParam().with_gpu();
    setenv("KVHIVE_FAKE_GPU_STALL", stall.c_str(), 1);
  });
  UniqueFd writer;  // the child that makes the memory reads from the pipe until this end is closed
  ASSERT_TRUE(eventually(
      [&] {
        writer = UniqueFd(open(stall.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
        return static_cast<bool>(writer);
      },
      std::chrono::seconds(60)));
  const std::vector<pid_t> processes = testing::processes_of(daemon);
  EXPECT_EQ(processes.size(), 3u);  // the keeper, the child that makes the memory, and the steward
  signal_process(daemon, SIGTERM);
  EXPECT_EQ(exit_code_of(daemon), 0);
  for (const pid_t process : processes)
    EXPECT_TRUE(eventually([&] { return !is_alive(process); })) << process;
  EXPECT_TRUE(std::filesystem::is_empty(sockets.path()));
  writer = UniqueFd();
  signal_process(daemon, SIGKILL);
  waitpid(daemon, nullptr, 0);
}

/// What the figures say there is room for may not be there any more when it is asked for.
TEST(Gpu, AFailureToMakeTheMemoryIsReportedInOneLine) {
  const TempDirectory directory, sockets;
  const std::string stall = directory.path() / "stall", loss = directory.path() / "loss";
  const std::string words = directory.path() / "words";
  ASSERT_EQ(mkfifo(stall.c_str(), 0600), 0);
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(),
               {"--socket", sockets.path() / "s", "--model", kDemoModel, "--log-level", "error"});
  const pid_t daemon = spawn(program("kvhived"), flags, -1, -1, [&] {
    with_gpu();
    setenv("KVHIVE_FAKE_GPU_STALL", stall.c_str(), 1);
    setenv("KVHIVE_FAKE_GPU_LOSS", loss.c_str(), 1);
    write_errors_to(words);
  });
  {
    const UniqueFd writer(open(stall.c_str(), O_WRONLY | O_CLOEXEC));  // waits for the maker
    std::ofstream{loss};
  }
  EXPECT_EQ(exit_code_of(daemon), 1);
  waitpid(daemon, nullptr, 0);
  const std::string said = text_of(words);
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_THAT(said, HasSubstr("create_shared"));
  EXPECT_TRUE(std::filesystem::is_empty(sockets.path()));
}

TEST(Gpu, APoolAndWeightsThatAreTooLargeTogetherAreRefusedBeforehand) {
  const TempDirectory directory;
  const CommandResult refused =
      run("kvhived",
          {"--model", kDemoModel, "--socket", directory.path() / "s", "--device", "cuda",
           "--kv-cache-memory-bytes", "2G", "--max-model-len", "512", "--log-level", "error"},
          with_gpu);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("the pool needs 2.00 GiB and weights 8.00 MiB, the GPU has"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

/// Opening a context takes a second, and a second context's memory would be counted as used.
TEST(Gpu, DescribingTheModelOpensTheDeviceOnce) {
  const TempDirectory directory;
  directory.write("fault", "1");  // the first call to the first device fails
  const CommandResult described = run(
      "kvhive-engine", {"--model", kDemoModel, "--device", "cuda", "--describe", "config"}, [&] {
        with_gpu();
        setenv("KVHIVE_FAKE_GPU_FAULT", (directory.path() / "fault").c_str(), 1);
      });
  EXPECT_EQ(described.exit_code, 1);
  EXPECT_THAT(described.err, HasSubstr("free_bytes: a fault was wanted"));
}

/// One arena and the weights of all models, shared by descriptors or kept by a process. Also with
/// another keeper, which has the descriptors, and with other engines.
///
/// \param also  what else is true of the daemon and what the models say
void expect_what_each_says_alone(
    const Models& models, const Requests& requests, const char* blocks, void (*with_gpu)(),
    const std::function<void(const Daemon&, const std::map<std::string, Tokens>&)>& also) {
  std::vector<std::string> flags = {"--device",        "cuda", "--max-num-batched-tokens", "64",
                                    "--max-model-len", "320",  "--max-num-seqs",           "8"};
  const auto expected = alone(models, requests, flags, with_gpu);
  flags.insert(flags.end(), {"--num-gpu-blocks-override", blocks, "--swap-space", "16M"});
  const Daemon daemon(models.flags(flags), with_gpu);
  EXPECT_EQ(together(daemon, models, requests), expected);
  daemon.kill_keeper();
  daemon.signal_engines(SIGKILL);
  EXPECT_EQ(together(daemon, models, requests), expected);
  EXPECT_TRUE(daemon.fsck_is_clean());
  also(daemon, expected);
}

TEST_P(GpuEitherWay, SeveralModelsSayWhatEachSaysAlone) {
  expect_what_each_says_alone({}, overlapping_requests(2, 6, 2), "48", GetParam().with_gpu,
                              [](const Daemon& daemon, const auto&) {
                                EXPECT_EQ(model_row(daemon, "small")["block_size"], 32);
                              });
}

/// Each model's adapters lie behind its own weights.
TEST_P(GpuEitherWay, SeveralModelsWithAdaptersSayWhatEachSaysAlone) {
  const AdaptersOfTwo adapters;
  const Requests few = overlapping_requests(3, 6, 2);
  expect_what_each_says_alone(
      adapters.models(), few, "64", GetParam().with_gpu,
      [&](const Daemon& daemon, const auto& expected) {
        for (const auto& [model, row] : {std::pair{"demo", 1u}, {"demo", 2u}, {"small", 1u}})
          EXPECT_NE(ids(*connect_to(daemon, model).generate(few[row])), expected.at(model)[row]);
      });
}

/// Layers that see their own chunk and free those before it, beside layers that see everything.
TEST(Gpu, Llama4HasTheTokensOfTheCpu) {
  const GoldenModel model("llama4");
  const std::vector<std::string> flags = {"--model",
                                          model.path(),
                                          "--swap-space",
                                          "8M",
                                          "--max-model-len",
                                          "128",
                                          "--max-num-batched-tokens",
                                          "64",
                                          "--max-num-seqs",
                                          "12"};
  std::vector<GenerateRequest> requests = golden_requests();
  requests.resize(8);
  const auto daemon_with = [&](std::vector<std::string> more, const std::function<void()>& before) {
    more.insert(more.end(), flags.begin(), flags.end());
    return Daemon(more, before);
  };
  const Tokens expected =
      tokens_one_by_one(daemon_with({"--kv-cache-memory-bytes", "8M"}, [] {}), requests);
  const Daemon daemon = daemon_with(
      {"--device", "cuda", "--engines", "2", "--num-gpu-blocks-override", "40"}, with_gpu);
  EXPECT_EQ(tokens_at_once(daemon, requests), expected);
  EXPECT_EQ(tokens_at_once(daemon, requests), expected);
  EXPECT_GT(daemon.stat()["hit_blocks"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Gpu, BlocksThatAnotherModelEvictedComeBack) {
  const Models models;
  const Daemon daemon(models.flags({"--device", "cuda", "--max-num-seqs", "8",
                                    "--max-num-batched-tokens", "64", "--max-model-len", "320",
                                    "--num-gpu-blocks-override", "48", "--swap-space", "16M"}),
                      with_gpu);
  Client hybrid = connect_to(daemon, "hybrid"), small = connect_to(daemon, "small");
  const GenerateRequest request = request_of(passage(0, 700), 4);
  const auto before = hybrid.generate(request);
  for (std::size_t i = 1; i <= 6; ++i)
    ASSERT_TRUE(small.generate(request_of(passage(i * 300, 1000), 1)));
  const auto after = hybrid.generate(request);
  EXPECT_EQ(ids(*after), ids(*before));
  EXPECT_GT(after->cached_tokens, 100u);
  EXPECT_GT(daemon.stat()["demoted_blocks"], 10);
  EXPECT_GT(daemon.stat()["promoted_blocks"], 2);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

// -- guests

const std::vector<std::string> kGuest = {
    "--model",   kDemoModel, "--max-num-seqs", "8",    "--max-num-batched-tokens", "64",
    "--threads", "1",        "--log-level",    "error"};

TEST_P(GpuEitherWay, AGuestOnAnotherGpuIsRefusedNamingBoth) {
  const Daemon daemon(kOnGpu, GetParam().with_gpu);
  std::vector<std::string> flags = kGuest;
  flags.insert(flags.end(), {"--socket", daemon.socket()});
  const TempDirectory directory;
  const std::string words = directory.path() / "words";
  const pid_t stranger = spawn(program("kvhive-engine"), flags, -1, -1, [&] {
    GetParam().with_gpu();
    setenv("KVHIVE_FAKE_GPU_UUID", "GPU-other", 1);
    write_errors_to(words);
  });
  EXPECT_EQ(exit_code_of(stranger), 1);
  signal_process(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  const std::string refusal = text_of(words);
  EXPECT_EQ(std::ranges::count(refusal, '\n'), 1) << refusal;
  for (const char* text :
       {"fake GPU GPU-fake", "this engine on GPU-other", "CUDA_VISIBLE_DEVICES=GPU-fake"})
    EXPECT_THAT(refusal, HasSubstr(text));

  const pid_t guest = spawn(program("kvhive-engine"), flags, -1, -1, [] { GetParam().with_gpu(); });
  EXPECT_TRUE(eventually([&] { return daemon.engine(2) != nullptr; }, std::chrono::seconds(60)));
  const auto result = daemon.connect(2).generate(request_of("In the beginning", 4));
  EXPECT_TRUE(result) << result.error().text;
  signal_process(guest, SIGKILL);
  waitpid(guest, nullptr, 0);
}

TEST(Gpu, WithoutAGpuDeviceAutoUsesTheCpuAndDeviceCudaIsRefused) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "4M", "--device", "auto"});
  EXPECT_TRUE(daemon.connect().generate(request_of("In the beginning", 4)));
  const CommandResult refused =
      run("kvhived", {"--model", kDemoModel, "--socket", daemon.directory() + "/other", "--device",
                      "cuda", "--log-level", "error"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--device cpu"));
}

}  // namespace
}  // namespace kvhive::testing
