// Prompts as embeddings over HTTP, beside a real daemon: vLLM's prompt_embeds.

#include <gmock/gmock.h>

#include <boost/asio/executor_work_guard.hpp>
#include <cmath>
#include <optional>

#include "models/text/tokenizer_parser.hpp"
#include "tests/serve/served.hpp"
#include "tests/serve/tensor/saved_tensor.hpp"
#include "tests/support/embeddings.hpp"
#include "tools/serve/hive/hive.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kWidth = 256;  ///< the demo model's hidden_size

std::vector<TokenId> tokens_of(const std::string& text) {
  static const Tokenizer tokenizer = load_tokenizer(kDemoModel).value();
  return tokenizer.encode(text, AddSpecial::yes).value();
}

std::string rows_of(const std::vector<TokenId>& tokens) {
  return saved_rows(embeddings_of(kDemoModel, tokens), kWidth);
}

/// For one token, of rows that are not looked at.
Json asked(const Json& rows) {
  return {{"prompt_embeds", rows}, {"max_tokens", 1}, {"temperature", 0}};
}

class PromptEmbedsTest : public ::testing::Test {
 protected:
  HttpReply ask(const Json& request) const {
    return service_.ask(post("/v1/completions", request.dump()));
  }

  const Daemon daemon_;
  const Service service_{daemon_.socket(), {"--enable-prompt-embeds"}};
};

/// A short one is decoded in the loop, a long one beside it.
TEST_F(PromptEmbedsTest, RowsOfTokensAreAnsweredAsTheTokens) {
  for (const std::size_t length : {60, 3000}) {
    const std::vector<TokenId> tokens = tokens_of(passage(0, length));
    Json request = {{"prompt", tokens}, {"max_tokens", 30}, {"temperature", 0}, {"logprobs", 2}};
    const Json wanted = ask(request).json();
    request["prompt"] = "";
    request["prompt_embeds"] = rows_of(tokens);
    request["return_token_ids"] = true;
    const HttpReply reply = ask(request);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json answer = reply.json();
    EXPECT_EQ(answer["choices"][0]["text"], wanted["choices"][0]["text"]);
    EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"],
              wanted["choices"][0]["logprobs"]["tokens"]);
    EXPECT_EQ(answer["choices"][0]["token_ids"].size(), 30u);
    EXPECT_TRUE(answer["choices"][0]["prompt_token_ids"].is_null());
    EXPECT_EQ(answer["usage"]["prompt_tokens"], tokens.size());
    request.erase("prompt");
    request["stream"] = true;
    EXPECT_EQ(text_of(ask(request).events()), wanted["choices"][0]["text"]);
  }
}

TEST_F(PromptEmbedsTest, AListIsSeveralPromptsAndEqualRowsAreCached) {
  const std::vector<TokenId> one = tokens_of(passage(0, 600)), other = tokens_of(passage(600, 600));
  const auto text_behind = [&](const std::vector<TokenId>& tokens) {
    return ask({{"prompt", tokens}, {"max_tokens", 8}, {"temperature", 0}})
        .json()["choices"][0]["text"];
  };
  Json request = {{"prompt", nullptr},
                  {"prompt_embeds", {rows_of(one), rows_of(other)}},
                  {"max_tokens", 8},
                  {"n", 2},
                  {"temperature", 0}};
  const Json answer = ask(request).json();
  ASSERT_EQ(answer["choices"].size(), 4u) << answer;
  EXPECT_EQ(answer["choices"][0]["text"], text_behind(one));
  EXPECT_EQ(answer["choices"][3]["text"], text_behind(other));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], one.size() + other.size());
  request["prompt_embeds"] = rows_of(other);
  const Json again = ask(request).json();
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], other.size() / 2);
}

TEST_F(PromptEmbedsTest, WhatTakesTokensIsRefusedByItsField) {
  const std::string rows = rows_of(tokens_of("In the beginning"));
  const struct {
    Json also;
    const char* param;
  } cases[] = {
      {{{"prompt", "a"}}, "prompt_embeds"},
      {{{"prompt", {1, 2}}}, "prompt_embeds"},
      {{{"echo", true}}, "echo"},
      {{{"echo", true}, {"logprobs", 1}}, "echo"},
      {{{"prompt_logprobs", 0}}, "prompt_logprobs"},
      {{{"use_beam_search", true}, {"n", 2}}, "use_beam_search"},
  };
  for (const auto& [also, param] : cases) {
    Json request = asked(rows);
    request.update(also);
    const HttpReply reply = ask(request);
    EXPECT_EQ(reply.status, 400) << also;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("leave one of them out")) << also;
  }
  EXPECT_EQ(ask(asked(Json::array())).json()["error"]["param"], "prompt");  // as vLLM: none
  EXPECT_EQ(ask(asked(rows)).status, 200);
}

TEST_F(PromptEmbedsTest, WhatIsNoSuchTensorIsNamed) {
  std::vector<float> none(2 * kWidth, 0.f);
  none[kWidth + 3] = std::nanf("");
  const struct {
    Json rows;
    const char* says;
  } cases[] = {
      {7, "is no text"},
      {Json{{"a", 1}}, "is no text"},
      {"not base64!", "no base64"},
      {"Zm9v", "no archive of torch.save()"},
      {saved_rows(std::vector<float>(8), 4), "rows of 4 values; the model's hidden_size is 256"},
      {saved_rows(std::vector<float>(4096 * kWidth), kWidth), "4096 rows; a request may have 4096"},
      {saved_rows(none, kWidth), "value 3 of row 1 is"},  // an engine says so
      {Json::array({saved_rows(std::vector<float>(kWidth), kWidth), "Zm9v"}), "prompt_embeds [1] "},
      {Json(std::vector<std::string>(257, "")), "a list of 257"},
  };
  for (const auto& [rows, says] : cases) {
    const HttpReply reply = ask(asked(rows));
    EXPECT_EQ(reply.status, 400) << says;
    EXPECT_EQ(reply.json()["error"]["param"], "prompt_embeds") << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(says));
    EXPECT_LT(reply.body.size(), 500u);
  }
}

TEST(PromptEmbeds, AreTakenWhereTheOperatorSaysSo) {
  const Daemon daemon;
  const Service service(daemon.socket());
  const HttpReply reply =
      service.ask(post("/v1/completions", asked(rows_of(tokens_of("In the beginning"))).dump()));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "prompt_embeds");
  EXPECT_THAT(reply.body, HasSubstr("--enable-prompt-embeds"));
}

/// The last that a hive tells of this request.
Progress end_of(Hive::Limits limits, const Daemon& daemon, const GenerateRequest& request) {
  boost::asio::io_context loop{1};
  Hive hive(loop, {daemon.socket()}, limits, "");
  std::optional<Progress> end;
  hive.submit(request, 0, [&](const Progress& news) {
    if (news.reason != Finish::none) end = news;
  });
  const auto work = boost::asio::make_work_guard(loop);
  while (!end) loop.run_one();
  return *end;
}

/// More than a channel has by default. It gets to an engine, which says that its model takes less.
TEST(PromptEmbeds, MoreThanAChannelsUsualSizeHasAChannelOfItsOwn) {
  const Daemon daemon;
  GenerateRequest request;
  request.max_tokens = 1;
  request.embedding_width = kWidth;
  request.prompt_embeds.resize(12'000 * kWidth);
  EXPECT_GT(request.prompt_embeds.size() * sizeof(float), Hive::Limits{}.channel_bytes);
  const Progress end = end_of({}, daemon, request);
  EXPECT_EQ(end.error.code, ErrorCode::never_fits);
  EXPECT_THAT(end.error.text, HasSubstr("12000"));
  const Progress refused = end_of({.waiting_bytes = 12'000 * kWidth}, daemon, request);
  EXPECT_EQ(refused.error.code, ErrorCode::overloaded);
}

}  // namespace
}  // namespace kvhive::testing
