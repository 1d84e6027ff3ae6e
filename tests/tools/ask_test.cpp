// Whether a prompt finds room: `kvhive pool ask` and Client::ask, from real engines.

#include <gmock/gmock.h>

#include "tests/tools/stopped_engine.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Tokens that no text is made of, so that nothing of them is cached.
std::string ids_of(TokenId first, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i)
    text += (i == 0 ? "" : ",") + std::to_string(first + TokenId(i % 100));
  return text;
}

class AskedDaemon : public ::testing::Test {
 protected:
  CommandResult ask(std::vector<std::string> more) const {
    more.insert(more.begin(), {"pool", "ask"});
    return daemon_.cli(more);
  }
  Json json(std::vector<std::string> more) const {
    more.insert(more.end(), {"--format", "json"});
    return ask(std::move(more)).json();
  }

  /// 127 blocks of 16 tokens.
  Daemon daemon_{std::vector<std::string>{"--engines", "2", "--kv-cache-memory-bytes", "4M",
                                          "--max-model-len", "2000"}};
};

TEST_F(AskedDaemon, SaysOkLaterAndNeverAndHasAnExitCodeForEach) {
  const CommandResult ok = ask({"--prompt-tokens", ids_of(300, 1'600)});
  EXPECT_EQ(ok.exit_code, 0) << ok.err;
  EXPECT_THAT(ok.out, StartsWith("OK; blocks needed: 100, available: 127; tokens cached: 0 of"));
  const CommandResult never = ask({"--prompt-tokens", ids_of(300, 2'000)});
  EXPECT_EQ(never.exit_code, 3);
  EXPECT_THAT(never.out, StartsWith("NEVER; the prompt has 2000 tokens"));
  EXPECT_THAT(json({"--prompt-tokens", ids_of(300, 2'000)})["text"].get<std::string>(),
              HasSubstr("higher --max-model-len"));

  // A request that goes on holds 40 blocks and more.
  Client client = daemon_.connect(0);
  GenerateRequest holder = request_of("", 1'000);
  holder.prompt_tokens = std::vector<TokenId>(640, 700);
  const auto id = client.submit(holder);
  ASSERT_TRUE(id);
  ASSERT_TRUE(eventually([&] { return !client.read(*id)->tokens.empty(); }));
  {
    const StoppedEngine stopped(daemon_, 0);  // it has them as long as the test asks the other
    const CommandResult later = ask({"--prompt-tokens", ids_of(300, 1'600), "--engine", "1"});
    EXPECT_EQ(later.exit_code, 2) << later.err;
    EXPECT_THAT(later.out, StartsWith("LATER; blocks needed: 100, available: "));
    EXPECT_EQ(json({"--prompt-tokens", ids_of(300, 1'600), "--engine", "1"})["fit"], "later");
    EXPECT_EQ(ask({"--prompt-tokens", ids_of(300, 160), "--engine", "1"}).exit_code, 0);
  }
  client.discard(*id);
  EXPECT_TRUE(eventually([&] {
    return ask({"--prompt-tokens", ids_of(300, 1'600)}).exit_code == 0;
  }));
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

/// A script that asks before it sends something must not wait for ever.
TEST_F(AskedDaemon, SaysLaterWhereNoEngineTakesQuestions) {
  ASSERT_EQ(daemon_.cli({"engine", "drain", "0"}).exit_code, 0);
  ASSERT_EQ(daemon_.cli({"engine", "drain", "1"}).exit_code, 0);
  const CommandResult later = ask({"--timeout", "0.5", "x"});
  EXPECT_EQ(later.exit_code, 2) << later.err;
  EXPECT_THAT(later.out, StartsWith("LATER; no engine has answered in 0.5 s"));
  EXPECT_EQ(json({"--timeout", "0.5", "x"})["fit"], "later");
  ASSERT_EQ(daemon_.cli({"engine", "restart", "0"}).exit_code, 0);
  EXPECT_EQ(ask({"x"}).exit_code, 0);
}

TEST_F(AskedDaemon, KnowsWhatIsCachedForWhom) {
  (void)daemon_.connect(0).generate(request_of(passage(0, 400), 4));
  for (const char* engine : {"0", "1"}) {
    const Json here = json({passage(0, 400), "--engine", engine});
    EXPECT_EQ(here["fit"], "ok");
    EXPECT_GT(here["cached_tokens"], 50);
    EXPECT_LT(here["needed_blocks"], 3);
  }
  const Json salted = json({passage(0, 400), "--cache-salt", "alice"});
  EXPECT_EQ(salted["cached_tokens"], 0);
  EXPECT_GT(salted["needed_blocks"], 5);
}

TEST_F(AskedDaemon, ChangesNothingInThePool) {
  (void)daemon_.connect(0).generate(request_of(passage(0, 400), 4));
  ASSERT_TRUE(eventually([&] { return daemon_.nothing_is_held(); }));
  const Json before = daemon_.stat();
  for (int i = 0; i < 20; ++i) (void)json({passage(0, 900)});
  (void)ask({"x", "--adapter", "unknown"});
  const Json after = daemon_.stat();
  for (const char* counter : {"queried_blocks", "hit_blocks", "allocated_blocks", "prompt_tokens",
                              "finished_stop", "finished_length", "refused_requests"})
    EXPECT_EQ(after[counter], before[counter]) << counter;
  EXPECT_EQ(after["tiers"]["device"], before["tiers"]["device"]);
}

TEST_F(AskedDaemon, RefusesWhatARequestIsRefusedFor) {
  const auto error = [&](std::vector<std::string> more) {
    const CommandResult refused = ask(std::move(more));
    EXPECT_EQ(refused.exit_code, 1);
    return refused.err;
  };
  EXPECT_THAT(error({"x", "--engine", "9"}), HasSubstr("engine 9 does not exist"));
  EXPECT_THAT(error({"x", "--adapter", "y"}), HasSubstr("adapter 'y': the daemon has none"));
  EXPECT_THAT(error({"--prompt-tokens", "999999"}), HasSubstr("999999"));
  EXPECT_THAT(error({""}), HasSubstr("the prompt is empty"));
}

TEST_F(AskedDaemon, ThousandsOfQuestionsAreAnsweredBesideAStreamAndAcrossDeaths) {
  const auto requests = overlapping_requests(6, 60, 20);
  const Tokens undisturbed = tokens_one_by_one(daemon_, requests);
  const ChildProcess killer = killer_of_running_engine(daemon_);
  std::size_t answered = 0;
  std::thread asker([&] {
    Client client = daemon_.connect();
    GenerateRequest question = request_of(passage(0, 700), 1);
    for (; answered < 2'000; ++answered) {
      const auto room = client.ask(question);
      if (!room || room->fit == Fit::none || room->prompt_tokens == 0) break;
    }
  });
  EXPECT_EQ(tokens_at_once(daemon_, requests), undisturbed);
  asker.join();
  EXPECT_EQ(answered, 2'000u);
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

TEST_F(AskedDaemon, AQuestionIsReadAsAnyRequest) {
  Client client = daemon_.connect(1);
  GenerateRequest question = request_of(passage(0, 100), 1);
  question.only_asks = true;
  const auto id = client.submit(question);
  ASSERT_TRUE(id);
  Progress news;
  ASSERT_TRUE(eventually([&] { return (news = *client.read(*id)).reason != Finish::none; }));
  EXPECT_EQ(news.reason, Finish::room);
  EXPECT_EQ(to_string(news.reason), "room");
  EXPECT_EQ(news.room.fit, Fit::ok);
  EXPECT_EQ(to_string(news.room.fit), "ok");
  EXPECT_GT(news.room.prompt_tokens, 10u);
  EXPECT_TRUE(news.tokens.empty());
  EXPECT_EQ(news.engine, 1u);
  EXPECT_EQ(client.status().requests_under_way, 0u);
}

}  // namespace
}  // namespace kvhive::testing
