// The C API, called as a C program would.

#include <gmock/gmock.h>

#include <span>
#include <vector>

#include "kvhive/kvhive.h"
#include "tests/support/demo_adapter.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

kvhive_client* connect(const Daemon& daemon, const char* model = nullptr) {
  kvhive_options options = kvhive_default_options();
  options.socket = daemon.socket().c_str();
  options.model = model;
  kvhive_client* client = nullptr;
  EXPECT_EQ(kvhive_connect(&options, &client), KVHIVE_OK) << kvhive_last_error();
  return client;
}

/// The last progress of a request, whose end is awaited.
kvhive_progress end_of(kvhive_client* client, uint64_t id) {
  kvhive_progress news = kvhive_empty_progress();
  do {
    EXPECT_EQ(kvhive_wait(client, -1), KVHIVE_OK);
    EXPECT_EQ(kvhive_read(client, id, &news), KVHIVE_OK);
  } while (news.finish == KVHIVE_FINISH_NONE && !::testing::Test::HasFailure());
  return news;
}

/// Each field arrives: the answer is that of the same request through the C++ library.
TEST(CApi, RulesOfTokensArrive) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  GenerateRequest same = request_of("In the beginning", 30);
  same.presence_penalty = 0.5f;
  same.frequency_penalty = 0.25f;
  same.repetition_penalty = 1.25f;
  same.min_tokens = 12;
  same.logit_bias = {{262, -3}, {300, 2}};
  for (TokenId token = 256; token < 1500; ++token) same.allowed_token_ids.push_back(token);
  same.bad_words = {"God", "the"};
  same.stop = {"e"};
  same.include_stop = true;
  const auto expected = daemon.connect().generate(same);
  ASSERT_TRUE(expected.has_value());
  ASSERT_THAT(expected->text, ::testing::EndsWith("e"));
  ASSERT_GT(expected->tokens.size(), 12u);

  kvhive_request request = kvhive_default_request("In the beginning");
  EXPECT_EQ(request.repetition_penalty, 1);
  const kvhive_token_bias biases[] = {{262, -3}, {300, 2}};
  const char* const words[] = {"God", "the"};
  const char* const stop[] = {"e"};
  request.max_tokens = 30;
  request.presence_penalty = 0.5f;
  request.frequency_penalty = 0.25f;
  request.repetition_penalty = 1.25f;
  request.min_tokens = 12;
  request.logit_bias = biases;
  request.logit_bias_count = 2;
  request.allowed_tokens = same.allowed_token_ids.data();
  request.allowed_token_count = same.allowed_token_ids.size();
  request.bad_words = words;
  request.bad_word_count = 2;
  request.stop = stop;
  request.stop_count = 1;
  request.include_stop = 1;
  kvhive_client* client = connect(daemon);
  uint64_t id = 0;
  ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
  std::string text;
  kvhive_progress news = kvhive_empty_progress();
  do {
    ASSERT_EQ(kvhive_wait(client, -1), KVHIVE_OK);
    ASSERT_EQ(kvhive_read(client, id, &news), KVHIVE_OK);
    text.append(news.text, news.text_bytes);
  } while (news.finish == KVHIVE_FINISH_NONE);
  EXPECT_EQ(text, expected->text);
  kvhive_close(client);
}

/// A client names its model, and a request an adapter of it.
TEST(CApi, OfSeveralModelsEachHasItsAdapters) {
  const DemoAdapter poet(1), clerk(2);
  const Daemon daemon({"--model", "a=" + kDemoModel, "--model", "b=" + kDemoModel,
                       "--kv-cache-memory-bytes", "8M", "--lora-modules",
                       "a:poet=" + poet.path() + ",b:clerk=" + clerk.path()});
  kvhive_client* client = connect(daemon, "b");
  const auto answer = [&](const char* adapter) {
    kvhive_request request = kvhive_default_request("In the beginning");
    request.max_tokens = 4;
    request.ignore_eos = 1;
    request.adapter = adapter;
    uint64_t id = 0;
    EXPECT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
    return end_of(client, id);
  };
  EXPECT_EQ(answer("clerk").finish, KVHIVE_FINISH_LENGTH);
  EXPECT_EQ(answer(nullptr).finish, KVHIVE_FINISH_LENGTH);
  const kvhive_progress refused = answer("poet");
  EXPECT_EQ(refused.finish, KVHIVE_FINISH_ERROR);
  EXPECT_STREQ(refused.error_text,
               "adapter 'poet': model 'b' has none of this name; it has clerk; if it is another "
               "model's, connect to that one");
  kvhive_close(client);
}

TEST(CApi, StreamsARequestToItsEnd) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  kvhive_request request = kvhive_default_request("In the beginning");
  request.max_tokens = 12;
  request.ignore_eos = 1;
  request.logprobs = 2;
  request.scores_prompt = 1;
  request.prompt_logprobs = 3;
  uint64_t id = 0;
  ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
  std::string text;
  std::size_t tokens = 0, scored = 0;
  kvhive_progress news = kvhive_empty_progress();
  do {
    ASSERT_EQ(kvhive_wait(client, -1), KVHIVE_OK);
    ASSERT_EQ(kvhive_read(client, id, &news), KVHIVE_OK);
    text.append(news.text, news.text_bytes);
    tokens += news.token_count;
    for (std::size_t i = 0; i < news.token_count; ++i) EXPECT_EQ(news.tokens[i].top_count, 2u);
    scored += news.prompt_count;
    for (std::size_t i = 0; i < news.prompt_count; ++i) {
      EXPECT_EQ(news.prompt[i].top_count, i == 0 ? 0u : 3u);
      if (news.prompt[i].rank == 1) {
        EXPECT_EQ(news.prompt[i].token, news.prompt[i].top[0].token);
      }
    }
  } while (news.finish == KVHIVE_FINISH_NONE);
  EXPECT_EQ(news.finish, KVHIVE_FINISH_LENGTH);
  EXPECT_EQ(tokens, 12u);
  EXPECT_EQ(scored, news.prompt_tokens);
  EXPECT_EQ(text, daemon.connect().generate(request_of("In the beginning", 12))->text);
  EXPECT_EQ(kvhive_read(client, id, &news), KVHIVE_BAD_ARGUMENT);
  EXPECT_THAT(kvhive_last_error(), HasSubstr("its end has been read"));
  EXPECT_EQ(kvhive_serving_engine(client), 0);
  kvhive_close(client);
}

TEST(CApi, AQuestionEndsWithItsAnswer) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  kvhive_request request = kvhive_default_request("In the beginning God created the heaven");
  request.only_asks = 1;
  uint64_t id = 0;
  ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
  const kvhive_progress news = end_of(client, id);
  EXPECT_EQ(news.finish, KVHIVE_FINISH_ROOM);
  EXPECT_EQ(news.fit, KVHIVE_FIT_OK);
  EXPECT_EQ(news.needed_blocks, (news.prompt_tokens + 15) / 16);
  EXPECT_GT(news.available_blocks, 200u);
  EXPECT_EQ(news.token_count, 0u);
  kvhive_close(client);
}

TEST(CApi, ARefusedRequestEndsWithItsErrorInTheProgress) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  const int32_t unknown_token = 1 << 30;
  kvhive_request request = kvhive_default_request(nullptr);
  request.prompt_tokens = &unknown_token;
  request.prompt_token_count = 1;
  uint64_t id = 0;
  ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
  const kvhive_progress news = end_of(client, id);
  EXPECT_EQ(news.finish, KVHIVE_FINISH_ERROR);
  EXPECT_NE(news.error, KVHIVE_OK);
  EXPECT_STRNE(news.error_text, "");
  kvhive_close(client);
}

TEST(CApi, ARefusalForOverloadSaysWhenToTryAgain) {
  const Daemon daemon(
      {"--kv-cache-memory-bytes", "8M", "--max-num-seqs", "1", "--max-queued-tokens", "1"});
  kvhive_client* client = connect(daemon);
  kvhive_request request = kvhive_default_request("In the beginning");
  request.max_tokens = 200;
  request.ignore_eos = 1;
  std::vector<uint64_t> ids(3);  // one runs, one waits
  for (uint64_t& id : ids) ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK);
  kvhive_progress news = kvhive_empty_progress();
  std::size_t refused = 0;
  while (!ids.empty()) {
    ASSERT_EQ(kvhive_wait(client, -1), KVHIVE_OK);
    std::erase_if(ids, [&](uint64_t id) {
      EXPECT_EQ(kvhive_read(client, id, &news), KVHIVE_OK);
      if (news.finish == KVHIVE_FINISH_ERROR) {
        ++refused;
        EXPECT_EQ(news.error, KVHIVE_OVERLOADED) << news.error_text;
        EXPECT_GT(news.retry_after_ms, 0u);
      }
      return news.finish != KVHIVE_FINISH_NONE;
    });
  }
  EXPECT_GE(refused, 1u);
  EXPECT_STREQ(kvhive_code_name(KVHIVE_OVERLOADED), "overloaded");
  kvhive_close(client);
}

/// Its struct has no field for when to try again.
TEST(CApi, ASmallerProgressOfAnOlderHeaderIsFilledAsFarAsItGoes) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  const kvhive_request request = kvhive_default_request("In the beginning");
  uint64_t id = 0;
  ASSERT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK);
  kvhive_progress news = kvhive_empty_progress();
  news.struct_size = offsetof(kvhive_progress, retry_after_ms);
  news.retry_after_ms = 77;
  do {
    ASSERT_EQ(kvhive_wait(client, -1), KVHIVE_OK);
    ASSERT_EQ(kvhive_read(client, id, &news), KVHIVE_OK) << kvhive_last_error();
    ASSERT_EQ(news.struct_size, offsetof(kvhive_progress, retry_after_ms));
  } while (news.finish == KVHIVE_FINISH_NONE);
  EXPECT_GT(news.prompt_tokens, 0u);
  EXPECT_EQ(news.retry_after_ms, 77u) << "written past the struct's end";
  kvhive_close(client);
}

TEST(CApi, ADomainIsAskedForByItsName) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M", "--domains", "team=4242"});
  kvhive_options options = kvhive_default_options();
  options.socket = daemon.socket().c_str();
  options.domain = "team";
  kvhive_client* client = nullptr;
  ASSERT_EQ(kvhive_connect(&options, &client), KVHIVE_OK) << kvhive_last_error();
  EXPECT_EQ(daemon.status()["clients"][0]["domain"], "team");
  kvhive_close(client);
  options.domain = "others";
  EXPECT_EQ(kvhive_connect(&options, &client), KVHIVE_BAD_ARGUMENT);
  EXPECT_THAT(kvhive_last_error(), HasSubstr("may not ask for domain 'others'"));
  const std::string long_name(33 + 3, 'a');
  options.domain = long_name.c_str();
  EXPECT_EQ(kvhive_connect(&options, &client), KVHIVE_BAD_ARGUMENT);
  EXPECT_THAT(kvhive_last_error(), HasSubstr("is no name of a domain"));
  options.struct_size = offsetof(kvhive_options, domain);  // an older program's
  ASSERT_EQ(kvhive_connect(&options, &client), KVHIVE_OK) << kvhive_last_error();
  kvhive_close(client);
}

TEST(CApi, ACacheSaltIsSentAndAnOlderProgramsRequestHasNone) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  const std::string prompt = passage(0, 600);
  const auto cached = [&](const char* salt, std::size_t struct_size) {
    kvhive_request request = kvhive_default_request(prompt.c_str());
    request.cache_salt = salt;
    request.struct_size = struct_size;
    request.max_tokens = 1;
    uint64_t id = 0;
    EXPECT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
    return end_of(client, id).cached_tokens;
  };
  constexpr std::size_t kNew = sizeof(kvhive_request), kOld = offsetof(kvhive_request, cache_salt);
  EXPECT_EQ(cached("alice", kNew), 0u);
  EXPECT_GT(cached("alice", kNew), 64u);
  EXPECT_EQ(cached(nullptr, kNew), 0u);
  EXPECT_GT(cached("alice", kOld), 64u) << "read behind the struct's end";
  EXPECT_GT(cached("", kNew), 64u);
  kvhive_close(client);
}

/// What is kept for a fork is not kept for ever: not every one must find it.
TEST(CApi, AForkComputesOnlyTheTokensThatAreNew) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  kvhive_client* client = connect(daemon);
  const auto cached = [&](std::span<const int32_t> prompt, bool will_be_forked) {
    kvhive_request request = kvhive_default_request(nullptr);
    request.prompt_tokens = prompt.data();
    request.prompt_token_count = prompt.size();
    request.max_tokens = 1;
    request.will_be_forked = will_be_forked;
    uint64_t id = 0;
    EXPECT_EQ(kvhive_submit(client, &request, &id), KVHIVE_OK) << kvhive_last_error();
    return end_of(client, id).cached_tokens;
  };
  int32_t first = 300;
  EXPECT_TRUE(eventually([&] {
    std::vector<int32_t> prompt(21, ++first);
    cached(prompt, true);
    prompt.push_back(300);
    return cached(prompt, false) == 21;
  }));
  kvhive_close(client);
}

TEST(CApi, WithoutADaemonConnectingFailsWithAReason) {
  kvhive_options options = kvhive_default_options();
  options.socket = "/nowhere/kvhived.sock";
  auto* client = reinterpret_cast<kvhive_client*>(&options);
  EXPECT_EQ(kvhive_connect(&options, &client), KVHIVE_NOT_RUNNING);
  EXPECT_EQ(client, nullptr);
  EXPECT_THAT(kvhive_last_error(), HasSubstr("no daemon listens on /nowhere/kvhived.sock"));
  EXPECT_STREQ(kvhive_code_name(KVHIVE_NOT_RUNNING), "not_running");
}

TEST(CApi, RefusesNullAndStructsWithoutASize) {
  kvhive_client* client = nullptr;
  kvhive_options options{};
  EXPECT_EQ(kvhive_connect(&options, &client), KVHIVE_BAD_ARGUMENT);
  EXPECT_THAT(kvhive_last_error(), HasSubstr("struct_size is not set"));
  EXPECT_EQ(kvhive_connect(nullptr, nullptr), KVHIVE_BAD_ARGUMENT);
  EXPECT_EQ(kvhive_submit(nullptr, nullptr, nullptr), KVHIVE_BAD_ARGUMENT);
  EXPECT_EQ(kvhive_wait(nullptr, 0), KVHIVE_BAD_ARGUMENT);
  EXPECT_EQ(kvhive_read(nullptr, 1, nullptr), KVHIVE_BAD_ARGUMENT);
  EXPECT_EQ(kvhive_abort(nullptr, 1), KVHIVE_BAD_ARGUMENT);
  EXPECT_EQ(kvhive_serving_engine(nullptr), -1);
  kvhive_close(nullptr);
}

/// A program compiled with a newer header passes larger structs.
TEST(CApi, LargerStructsOfANewerHeaderAreAccepted) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  struct NewerOptions {
    kvhive_options known = kvhive_default_options();
    std::uint64_t added = 7;
  } options;
  options.known.struct_size = sizeof options;
  options.known.socket = daemon.socket().c_str();
  kvhive_client* client = nullptr;
  EXPECT_EQ(kvhive_connect(&options.known, &client), KVHIVE_OK) << kvhive_last_error();
  kvhive_close(client);
}

TEST(CApi, HasAVersion) {
  EXPECT_EQ(kvhive_abi_version(), std::uint32_t{KVHIVE_ABI_VERSION});
  EXPECT_THAT(kvhive_version(), HasSubstr("."));
}

}  // namespace
}  // namespace kvhive::testing
