// The C++ client library against a running daemon.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>

#include <thread>

#include "base/check.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const std::vector<std::string> kSmall = {"--kv-cache-memory-bytes", "8M"};

/// Reads a request to its end.
Progress read_to_the_end(Client& client, RequestId request) {
  Progress news;
  do {
    KV_CHECK(client.wait().has_value());
    news = *client.read(request);
  } while (news.reason == Finish::none);
  return news;
}

TEST(Client, GeneratesAndStreamsTheSameText) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  std::string streamed;
  GenerateRequest request = request_of("In the beginning", 24);
  request.logprobs = 2;
  const auto whole = client.generate(request, [&](const Progress& news) { streamed += news.text; });
  ASSERT_TRUE(whole.has_value()) << whole.error().text;
  EXPECT_EQ(whole->reason, Finish::length);
  EXPECT_EQ(whole->tokens.size(), 24u);
  EXPECT_EQ(whole->tokens[5].top.size(), 2u);
  EXPECT_EQ(whole->text, streamed);
  EXPECT_EQ(whole->engine, 0u);
  EXPECT_GT(whole->prompt_tokens, 0u);
}

/// What the model says of an answer's tokens is what it said when it generated them, bit for bit,
/// however the prompt is cut into steps.
TEST(Client, AScoredPromptHasTheLogprobsThatItsTokensWereGeneratedWith) {
  const Daemon daemon({"--max-num-batched-tokens", "7", "--max-num-seqs", "4"});
  Client client = daemon.connect();
  GenerateRequest request = request_of("In the beginning", 24);
  request.logprobs = 3;
  request.prompt_logprobs = 3;
  const auto generated = client.generate(request);
  ASSERT_TRUE(generated.has_value()) << generated.error().text;
  ASSERT_EQ(generated->prompt.size(), generated->prompt_tokens);
  GenerateRequest again;
  for (const PromptLogprob& token : generated->prompt) again.prompt_tokens.push_back(token.token);
  const std::size_t first = again.prompt_tokens.size();
  for (const OutputToken& token : generated->tokens) again.prompt_tokens.push_back(token.token);
  again.max_tokens = 1;
  again.prompt_logprobs = 3;
  const auto scored = client.generate(again);
  ASSERT_TRUE(scored.has_value()) << scored.error().text;
  EXPECT_EQ(scored->cached_tokens, 0u);
  ASSERT_EQ(scored->prompt.size(), again.prompt_tokens.size());
  EXPECT_EQ(scored->prompt[0].rank, 0u);
  for (std::size_t i = 1; i < scored->prompt.size(); ++i) {
    const PromptLogprob& score = scored->prompt[i];
    const bool is_prompt = i < first;
    EXPECT_EQ(score.logprob,
              is_prompt ? generated->prompt[i].logprob : generated->tokens[i - first].logprob);
    const auto& top = is_prompt ? generated->prompt[i].top : generated->tokens[i - first].top;
    ASSERT_EQ(score.top.size(), 3u);
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(score.top[k].token, top[k].token);
      EXPECT_EQ(score.top[k].logprob, top[k].logprob);
    }
    EXPECT_EQ(score.rank, is_prompt ? generated->prompt[i].rank : 1u);  // greedy: the likeliest
  }
}

TEST(Client, ARequestThatHasEndedIsReadOnceAndItsNumberIsNotUsedAgain) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  const RequestId first = *client.submit(request_of("In the beginning", 2));
  read_to_the_end(client, first);
  const auto again = client.read(first);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::bad_argument);
  EXPECT_THAT(again.error().text, HasSubstr("its end has been read"));
  EXPECT_FALSE(client.read(12345).has_value());
  client.abort(first);
  client.discard(first);
  const RequestId second = *client.submit(request_of("In the beginning", 2));
  EXPECT_NE(second, first);
  read_to_the_end(client, second);
}

TEST(Client, DiscardedRequestsFreeTheirSpaceInTheChannel) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  // Two of these do not fit into the channel together.
  GenerateRequest large = request_of("In the beginning", 3000);
  large.most_text_bytes = kDefaultChannelBytes * 5;
  const RequestId first = *client.submit(large);
  EXPECT_EQ(client.submit(large).error().code, ErrorCode::pool_exhausted);
  client.discard(first);
  EXPECT_TRUE(eventually([&] { return client.submit(large).has_value(); }, kHang));
}

TEST(Client, ACallbackThatThrowsDiscardsItsRequest) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  EXPECT_THROW((void)client.generate(request_of("In the beginning", 3000),
                                     [](const Progress&) { throw std::runtime_error("enough"); }),
               std::runtime_error);
  const auto next = client.generate(request_of("In the beginning", 4));
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->tokens.size(), 4u);
  EXPECT_TRUE(eventually([&] { return client.status().requests_under_way == 0; }, kHang));
}

TEST(Client, ACallbackMayAbortItsRequest) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  const auto ended =
      client.generate(request_of("In the beginning", 3500), [&](const Progress& news) {
        if (!news.tokens.empty()) client.abort(news.request);
      });
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->reason, Finish::abort);
}

TEST(Client, ASecondThreadThatWaitsIsRefused) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  std::thread waiting([&] {
    while (!client.wait().has_value()) {  // wait() is refused here if the test's thread was first
    }
  });
  std::string refused;
  EXPECT_TRUE(eventually([&] {
    refused = client.wait(milliseconds(0)).error().text;
    return !refused.empty();
  }));
  EXPECT_THAT(refused, HasSubstr("another thread waits"));
  ASSERT_TRUE(client.submit(request_of("In the beginning", 1)).has_value())
      << "another thread may submit while one waits";
  waiting.join();
}

bool is_readable(int descriptor, int timeout_ms) {
  pollfd fd{descriptor, POLLIN, 0};
  return poll(&fd, 1, timeout_ms) == 1;
}

TEST(Client, AnEventLoopCanWaitForItsDescriptor) {
  Daemon daemon(kSmall);
  Client client = daemon.connect();
  const auto whole = client.generate(request_of("In the beginning", 20));
  const auto request = client.submit(request_of("In the beginning", 20));
  std::vector<OutputToken> tokens;
  for (Finish reason = Finish::none; reason == Finish::none;) {
    ASSERT_TRUE(is_readable(client.descriptor(), 60'000)) << "it slept over an answer";
    ASSERT_TRUE(client.wait(milliseconds(0)).has_value());
    const auto news = client.read(*request);
    tokens.insert(tokens.end(), news->tokens.begin(), news->tokens.end());
    reason = news->reason;
  }
  EXPECT_EQ(tokens.size(), whole->tokens.size());
  EXPECT_TRUE(eventually([&] {
    (void)client.wait(milliseconds(0));
    return !is_readable(client.descriptor(), 0);
  })) << "an event loop would spin";
  daemon.kill();
  ASSERT_TRUE(is_readable(client.descriptor(), 60'000));
  EXPECT_TRUE(eventually([&] { return !client.wait(milliseconds(0)).has_value(); }));
}

TEST(Client, ThatWasMovedFromReturnsErrors) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  Client target = std::move(client);
  EXPECT_THAT(client.submit(GenerateRequest{}).error().text, HasSubstr("moved from"));
  EXPECT_THAT(client.wait().error().text, HasSubstr("moved from"));
  EXPECT_THAT(client.read(1).error().text, HasSubstr("moved from"));
  client.abort(1);
  EXPECT_EQ(client.status().channel_bytes, 0u);
  EXPECT_EQ(target.generate(request_of("In the beginning", 4))->tokens.size(), 4u);
}

TEST(Client, IsToldThatNoEngineWorksOnItsRequest) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect();
  EXPECT_TRUE(eventually([&] { return client.status().engine == 0u; }));
  const pid_t engine = daemon.engine(0)["pid"];
  signal_process(engine, SIGSTOP);
  int reports = 0;
  const auto result = client.generate(request_of("In the beginning", 4), [&](const Progress& news) {
    if (news.engine || reports < 0) return;
    EXPECT_EQ(news.reason, Finish::none);
    if (++reports == 2) signal_process(engine, SIGCONT);
  });
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(reports, 2) << "one report per second while the engine was stopped";
  EXPECT_EQ(result->engine, 0u);
}

TEST(GenerateCommand, SaysAfterASecondThatNoEngineHasTheRequest) {
  const Daemon daemon(kSmall);
  const pid_t engine = daemon.engine(0)["pid"];
  signal_process(engine, SIGSTOP);
  int err[2];
  KV_CHECK(pipe2(err, O_CLOEXEC) == 0);
  const UniqueFd silent(open("/dev/null", O_WRONLY | O_CLOEXEC));
  const pid_t command =
      spawn(program("kvhive"), {"generate", "--prompt", "x", "--socket", daemon.socket()},
            silent.get(), err[1]);
  close(err[1]);
  std::string line;
  for (char letter; read(err[0], &letter, 1) == 1 && letter != '\n';) line += letter;
  EXPECT_EQ(line,
            "kvhive: waiting: engine 0 has not accepted the request yet; it is starting, busy, "
            "drained or stopped");
  signal_process(engine, SIGCONT);
  int status = 0;
  waitpid(command, &status, 0);
  close(err[0]);
  EXPECT_EQ(status, 0);
}

/// 4 GiB of channels were 256 channels of the former default of 16 MiB.
TEST(Client, ThreeHundredWithTheDefaultChannelAreServedAtOnce) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 4096) GTEST_SKIP() << "NOT RUN: needs 4,096 descriptors";
  limit.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Daemon daemon(kSmall);
  std::vector<Client> clients;
  for (int i = 0; i < 300; ++i) {
    ClientOptions options;
    options.socket = daemon.socket();
    auto client = Client::connect(options);
    ASSERT_TRUE(client.has_value()) << i << ": " << client.error().text;
    clients.push_back(std::move(*client));
  }
  for (std::size_t i : {std::size_t{0}, std::size_t{256}, std::size_t{299}})
    EXPECT_EQ(clients[i].generate(request_of("In the beginning", 2))->tokens.size(), 2u);
}

TEST(Client, AChannelThatIsTooSmallSaysHowToGetALargerOne) {
  const Daemon daemon(kSmall);
  Client client = daemon.connect(kAnyEngine, kLeastChannelBytes);
  GenerateRequest large = request_of("In the beginning", 3000);
  large.most_text_bytes = kLeastChannelBytes;
  const auto refused = client.generate(large);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("channel_bytes"));
  const auto sized = daemon.connect(kAnyEngine, channel_bytes_for(large)).submit(large);
  EXPECT_TRUE(sized.has_value()) << sized.error().text;
  const CommandResult flag =
      daemon.cli({"generate", "--prompt", "x", "--max-tokens", "60000", "--channel-bytes", "1M"});
  EXPECT_EQ(flag.exit_code, 1);
  EXPECT_THAT(flag.err, HasSubstr("the channel has no room"));
}

}  // namespace
}  // namespace kvhive::testing
