#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "base/check.hpp"
#include "ipc/channel/client_channel.hpp"
#include "ipc/channel/doorbell.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// How often the client was rung since the last call.
std::size_t rings(const ClientBell& bell) {
  char heard[512];
  const ssize_t got = recv(bell.client_end.get(), heard, sizeof heard, MSG_DONTWAIT);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}
/// The same for the engine. (An engine never reads its bell.)
std::size_t rings(const UniqueFd& engine_bell) {
  std::uint64_t count = 0;
  return read(engine_bell.get(), &count, sizeof count) == sizeof count ? count : 0;
}

/// Both ends of one channel in this process, each with its own mappings.
class ChannelTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = kLeastChannelBytes;

  /// A new engine in a process slot; the one that was there has died.
  std::shared_ptr<EngineChannel> open_engine(std::uint32_t number, std::uint32_t slot = 0) {
    auto engine =
        EngineChannel::open(5, board_.join(number, slot), copy_of(memory_.requests),
                            memory_.answers, kBytes, direct_ring(copy_of(client_bell_.engine_end)));
    KV_CHECK(engine.has_value(), engine.error().text);
    write_serving_engines(memory_.answers, number, 1u << slot);
    return std::move(*engine);
  }

  /// Takes the only submitted request.
  TakenRequest take_one() {
    auto taken = engine_->take_submitted();
    KV_CHECK(taken.size() == 1, taken.size());
    return std::move(taken.front());
  }

  std::byte* requests() const { return client_.raw_requests().data(); }
  RequestBody& body(std::size_t slot) const { return body_in(requests(), slot); }
  RequestMark& mark(std::size_t slot) const { return mark_in(requests(), slot); }
  AnswerSlot& answer(std::size_t slot) const { return answer_in(answers_.data(), slot); }
  bool is_finished(std::size_t slot) const {
    const SlotState state = answer(slot).state.load();
    return state.number != 0 && state.phase() == Phase::finished;
  }

  static ChannelRequest token_request(std::size_t prompt_tokens = 3, std::uint32_t max_tokens = 4) {
    ChannelRequest request;
    request.prompt_tokens = counting(100, prompt_tokens);
    request.params.max_tokens = max_tokens;
    return request;
  }

  /// The engine begins to work on the request.
  void run(const TakenRequest& request) { KV_CHECK(engine_->sink(request)->start()); }

  /// Answers every submitted request with `tokens` tokens of text "x".
  void serve_all(std::uint32_t tokens) {
    for (const TakenRequest& request : engine_->take_submitted()) {
      const auto sink = engine_->sink(request);
      for (std::uint32_t i = 0; i < tokens; ++i) sink->token({7, 0, {}}, "x");
      sink->finished(FinishReason::length, {}, {}, tokens);
    }
  }

  TestBoard board_;
  ChannelMemory memory_ = make_channel_memory(kBytes);
  MappedMemory answers_ = map_answers(memory_, kBytes);
  ClientBell client_bell_ = make_client_bell().value();
  UniqueFd engine_bell_ = make_engine_bell().value();
  ClientChannel client_ =
      ClientChannel::open(copy_of(memory_.requests), memory_.answers, kBytes, copy_of(engine_bell_))
          .value();
  std::shared_ptr<EngineChannel> engine_ = open_engine(1);
};

// -- requests and answers

TEST_F(ChannelTest, ARequestArrivesAsItWasSubmitted) {
  ChannelRequest request = token_request(5, 9);
  request.params.sampling = {0.5f, 40, 0.9f, 0.1f, 1ull << 60};
  request.params.has_seed = true;
  request.params.logprobs = 20;
  request.params.ignore_eos = true;
  request.params.priority = -3;
  request.params.stop = {std::string(kStopBytes, 's'), "b"};
  request.params.stop_token_ids = {4, 5, 6};
  request.params.cache_salt = std::string("a\0b", 3) + std::string(kSaltBytes - 3, 's');
  request.params.adapter = std::string(kAdapterBytes, 'a');
  request.params.include_stop = true;
  request.params.only_asks = true;
  request.params.will_be_forked = true;
  request.params.rules = {.presence_penalty = -2,
                          .frequency_penalty = 1.5f,
                          .repetition_penalty = 1.1f,
                          .min_tokens = 9,
                          .logit_bias = {{7, -100}, {3, 0.5f}},
                          .allowed_token_ids = counting(1, 300),
                          .bad_words = {"a", std::string(kBadWordBytes, 'b'), "c"}};
  ASSERT_TRUE(client_.submit(request).has_value());

  const TakenRequest taken = take_one();
  EXPECT_EQ(taken.prompt_kind, PromptKind::tokens);
  EXPECT_EQ(taken.tokens, counting(100, 5));
  EXPECT_THAT(taken.journal, IsEmpty());
  EXPECT_EQ(taken.params.max_tokens, 9u);
  EXPECT_EQ(taken.params.sampling.temperature, 0.5f);
  EXPECT_EQ(taken.params.sampling.top_k, 40);
  EXPECT_EQ(taken.params.sampling.top_p, 0.9f);
  EXPECT_EQ(taken.params.sampling.min_p, 0.1f);
  EXPECT_EQ(taken.params.sampling.seed, 1ull << 60);
  EXPECT_TRUE(taken.params.has_seed);
  EXPECT_EQ(taken.params.logprobs, 20u);
  EXPECT_TRUE(taken.params.ignore_eos);
  EXPECT_EQ(taken.params.priority, -3);
  EXPECT_EQ(taken.params.stop, request.params.stop);
  EXPECT_EQ(taken.params.stop_token_ids, request.params.stop_token_ids);
  EXPECT_EQ(taken.params.cache_salt, request.params.cache_salt);
  EXPECT_EQ(taken.params.adapter, request.params.adapter);
  EXPECT_TRUE(taken.params.include_stop);
  EXPECT_TRUE(taken.params.only_asks);
  EXPECT_TRUE(taken.params.will_be_forked);
  EXPECT_EQ(taken.params.rules, request.params.rules);
}

TEST_F(ChannelTest, RulesSurviveTheEngineAndTheirRoomIsGivenBack) {
  ChannelRequest request = token_request();
  request.params.rules = {.frequency_penalty = 1, .bad_words = {"never"}};
  // As many as there is room for, again and again.
  request.params.rules.allowed_token_ids = counting(0, kBytes / 3 / sizeof(TokenId));
  for (int round = 0; round < 5; ++round) {
    const auto slot = client_.submit(request);
    ASSERT_TRUE(slot.has_value()) << slot.error().text;
    EXPECT_EQ(take_one().params.rules, request.params.rules);
    engine_ = open_engine(static_cast<std::uint32_t>(2 + round));
    const TakenRequest taken = take_one();
    EXPECT_EQ(taken.params.rules, request.params.rules) << "the successor's";
    engine_->sink(taken)->finished(FinishReason::length, {}, {}, 0);
    EXPECT_EQ(client_.read(*slot).reason, FinishReason::length);
  }
}

TEST_F(ChannelTest, LongListsCountInATurn) {
  ChannelRequest request = token_request();
  request.params.rules.allowed_token_ids = counting(0, 10'000);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_.submit(request).has_value());
  EXPECT_THAT(engine_->take_submitted({}, 10'000 * sizeof(TokenId)), SizeIs(1));
  EXPECT_TRUE(engine_->has_more());
}

/// Or the engine that goes on would find, and publish, other callers' blocks.
TEST_F(ChannelTest, ACacheSaltSurvivesTheEngineAndNotTheRequest) {
  ChannelRequest request = token_request();
  request.params.cache_salt = "alice";
  const std::uint32_t slot = client_.submit(request).value();
  run(take_one());
  body(slot) = {};  // what the client does to its own copy changes nothing
  engine_ = open_engine(2);
  const TakenRequest taken = take_one();
  EXPECT_EQ(taken.params.cache_salt, "alice");
  engine_->sink(taken)->finished(FinishReason::length, {}, {}, 0);
  client_.read(slot);
  ASSERT_EQ(client_.submit(token_request()).value(), slot);
  EXPECT_EQ(take_one().params.cache_salt, "");
}

TEST_F(ChannelTest, ASeedNotGivenIsDrawnOnceAndSurvivesTheEngine) {
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  const TakenRequest first = take_one();
  EXPECT_FALSE(first.params.has_seed);
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  EXPECT_NE(take_one().params.sampling.seed, first.params.sampling.seed);
  engine_ = open_engine(2);
  EXPECT_EQ(engine_->take_submitted().at(0).params.sampling.seed, first.params.sampling.seed);
}

TEST_F(ChannelTest, ATextPromptArrivesAsText) {
  ChannelRequest request;
  request.prompt = std::string("h\xc3\xa9\0llo", 7);
  ASSERT_TRUE(client_.submit(request).has_value());
  const TakenRequest taken = take_one();
  EXPECT_EQ(taken.prompt_kind, PromptKind::text);
  EXPECT_EQ(taken.text, request.prompt);
  EXPECT_THAT(taken.tokens, IsEmpty());
}

/// Nothing of it is copied until the engine asks for it.
TEST_F(ChannelTest, APromptOfEmbeddingsArrivesAsItsPlaceAndIsReadLater) {
  ChannelRequest request;
  request.prompt_embeds = {1, 2, 3, 4, 5, 6};
  request.embedding_width = 3;
  ASSERT_TRUE(client_.submit(request).has_value());
  auto all = engine_->take_submitted({.embedding_width = 3});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].prompt_kind, PromptKind::embeddings);
  EXPECT_THAT(all[0].tokens, IsEmpty());
  EXPECT_EQ(engine_->read_rows(all[0].rows).value(), request.prompt_embeds);
}

TEST_F(ChannelTest, EmbeddingsThatAreNoRowsOfTheModelAreRefused) {
  const auto refused = [&](ChannelRequest request) {
    request.prompt_embeds = {1, 2, 3, 4, 5, 6};
    if (request.embedding_width == 0) request.embedding_width = 3;
    const auto submitted = client_.submit(request);
    if (!submitted) return submitted.error().text;
    EXPECT_THAT(engine_->take_submitted({.tokens = 100, .embedding_width = 3}), IsEmpty());
    return client_.read(*submitted).error.text;
  };
  EXPECT_THAT(refused({.embedding_width = 4}), HasSubstr("has 6 values, no whole rows of 4"));
  EXPECT_THAT(refused({.embedding_width = 2}),
              HasSubstr("rows of 2 values; the model's hidden_size is 3"));
  EXPECT_THAT(refused({.prompt = "a"}), HasSubstr("give one of them"));
  EXPECT_THAT(refused({.params = {.prompt_logprobs = 0}}), HasSubstr("prompt_logprobs"));
  // Two rows and one token of output are more than two.
  ChannelRequest long_one;
  long_one.prompt_embeds = {1, 2};
  long_one.embedding_width = 1;
  const auto submitted = client_.submit(long_one);
  EXPECT_THAT(engine_->take_submitted({.tokens = 2, .embedding_width = 1}), IsEmpty());
  EXPECT_THAT(client_.read(*submitted).error.text, HasSubstr("the prompt has 2 tokens"));
}

/// Their bytes count until the request has ended.
TEST_F(ChannelTest, MemoryIsHeldForEmbeddings) {
  ChannelRequest request;
  request.embedding_width = 1024;
  request.prompt_embeds.resize(kBytes / 3 / sizeof(float) / 1024 * 1024);
  const PromptLimits limits{.embedding_width = 1024};
  ASSERT_TRUE(client_.submit(request).has_value());
  auto first = engine_->take_submitted(limits);
  ASSERT_THAT(first, SizeIs(1));
  // A hostile client names the same bytes in all its slots.
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t slot = client_.submit(token_request()).value();
    RequestBody& same = body(slot);
    const std::uint32_t number = same.number;
    same = body(0);
    same.number = number;
  }
  const auto others = engine_->take_submitted(limits);
  EXPECT_LE(others.size(), kMemoryPerChannelByte * 3);
}

TEST_F(ChannelTest, ARequestIsTakenOnce) {
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
}

TEST_F(ChannelTest, TokensTextAndLogprobsComeBackAsTheyAreWritten) {
  ChannelRequest request = token_request(3, 4);
  request.params.logprobs = 2;
  const std::uint32_t slot = client_.submit(request).value();
  EXPECT_THAT(client_.read(slot).tokens, IsEmpty());

  const auto sink = engine_->sink(take_one());
  sink->admitted({3, 2, 0});
  sink->token({7, -0.5f, {{7, -0.5f}, {8, -1.5f}}}, "ab");
  sink->token({8, -0.25f, {}}, "");
  ChannelProgress progress = client_.read(slot);
  ASSERT_THAT(progress.tokens, SizeIs(2));
  EXPECT_EQ(progress.tokens[0].token, 7);
  EXPECT_EQ(progress.tokens[0].logprob, -0.5f);
  ASSERT_THAT(progress.tokens[0].top, SizeIs(2));
  EXPECT_EQ(progress.tokens[0].top[1].token, 8);
  EXPECT_EQ(progress.tokens[0].top[1].logprob, -1.5f);
  EXPECT_THAT(progress.tokens[1].top, IsEmpty());
  EXPECT_EQ(progress.text, "ab");
  EXPECT_EQ(progress.stats.prompt_tokens, 3u);
  EXPECT_EQ(progress.stats.cached_tokens, 2u);
  EXPECT_EQ(progress.engine, 1u);
  EXPECT_EQ(progress.reason, FinishReason::none);

  sink->token({9, 0, {}}, "c\xc3\xa9");
  sink->finished(FinishReason::stop, {}, {3, 2, 1}, 5);
  progress = client_.read(slot);
  ASSERT_THAT(progress.tokens, SizeIs(1));
  EXPECT_EQ(progress.tokens[0].token, 9);
  EXPECT_EQ(progress.text, "c\xc3\xa9");
  EXPECT_EQ(progress.reason, FinishReason::stop);
  EXPECT_EQ(progress.stats.preemptions, 1u);
  EXPECT_EQ(progress.text_bytes, 5u);
}

TEST_F(ChannelTest, APromptsScoresComeOnceWithTheFirstToken) {
  ChannelRequest request = token_request(3, 4);
  request.params.prompt_logprobs = 2;
  const std::uint32_t slot = client_.submit(request).value();
  const TakenRequest taken = take_one();
  EXPECT_EQ(taken.params.prompt_logprobs, 2u);
  EXPECT_GE(taken.most_scored(), 3u);
  const auto sink = engine_->sink(taken);
  sink->admitted({3, 0, 0});
  const std::vector<PromptToken> scores = {
      {7, 0, 0, {}}, {8, -1.5f, 2, {{5, -0.5f}, {8, -1.5f}}}, {9, -0.25f, 1, {{9, -0.25f}}}};
  sink->prompt(0, std::span(scores).first(1));
  sink->prompt(1, std::span(scores).subspan(1));
  EXPECT_THAT(client_.read(slot).prompt, IsEmpty()) << "nothing of it before the first token";
  sink->token({1, 0, {}}, "a");
  EXPECT_EQ(client_.read(slot).prompt, scores);
  sink->token({2, 0, {}}, "b");
  EXPECT_THAT(client_.read(slot).prompt, IsEmpty());
  sink->finished(FinishReason::length, {}, {3, 0, 0}, 2);
  const ChannelProgress end = client_.read(slot);
  EXPECT_EQ(end.reason, FinishReason::length);
  EXPECT_THAT(end.prompt, IsEmpty());
}

TEST_F(ChannelTest, ScoresThatWereNotAskedForAreNotWritten) {
  ChannelRequest request = token_request(3, 4);
  request.params.prompt_logprobs = 0;
  const std::uint32_t slot = client_.submit(request).value();
  const TakenRequest taken = take_one();
  const auto sink = engine_->sink(taken);
  sink->admitted({200, 0, 0});
  const std::vector<PromptToken> scores(200, {7, -1, 1, {{5, -0.5f}}});
  sink->prompt(0, scores);
  const ChannelRange& room = answer(slot).body.prompt_log;
  const auto behind = client_.raw_answers().subspan(room.offset + room.bytes, 1000);
  EXPECT_TRUE(std::ranges::all_of(behind, [](std::byte byte) { return byte == std::byte{0}; }));
  sink->token({1, 0, {}}, "a");
  const std::vector<PromptToken> read = client_.read(slot).prompt;
  EXPECT_EQ(read, std::vector<PromptToken>(taken.most_scored(), {7, -1, 1, {}}));
  EXPECT_LT(read.size(), 10u);
}

TEST_F(ChannelTest, MoreLogprobsThanAskedForAreCutOff) {
  ChannelRequest request = token_request(3, 2);
  request.params.logprobs = 1;
  const std::uint32_t slot = client_.submit(request).value();
  const auto sink = engine_->sink(take_one());
  sink->token({7, 0, {{7, 0}, {8, -1}, {9, -2}}}, "");
  sink->token({8, 0, {{8, 0}}}, "");
  const ChannelProgress progress = client_.read(slot);
  ASSERT_THAT(progress.tokens, SizeIs(2));
  EXPECT_THAT(progress.tokens[0].top, SizeIs(1));
  EXPECT_EQ(progress.tokens[1].token, 8);
}

TEST_F(ChannelTest, MoreTokensThanAskedForAreNotWritten) {
  const std::uint32_t slot = client_.submit(token_request(3, 2)).value();
  const auto sink = engine_->sink(take_one());
  for (int i = 0; i < 5; ++i) sink->token({7, 0, {}}, "");
  EXPECT_THAT(client_.read(slot).tokens, SizeIs(2));
}

TEST_F(ChannelTest, TextWithoutRoomIsCutAndItsTokensAreNot) {
  ChannelRequest request = token_request(3, 8);
  request.most_text_bytes = 16;
  const std::uint32_t slot = client_.submit(request).value();
  const auto sink = engine_->sink(take_one());
  for (int i = 0; i < 4; ++i) sink->token({7, 0, {}}, "0123456");
  sink->finished(FinishReason::length, {}, {}, 28);
  const ChannelProgress progress = client_.read(slot);
  EXPECT_THAT(progress.tokens, SizeIs(4));
  EXPECT_EQ(progress.text, "0123456012345601");
  EXPECT_EQ(progress.text_bytes, 16u);
}

TEST_F(ChannelTest, ARefusedRequestFinishesWithItsError) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  const TakenRequest taken = take_one();
  const Error error{Errc::never_fits, std::string(1000, 'e')};
  engine_->sink(taken)->finished(FinishReason::error, error, {}, 0);
  const ChannelProgress progress = client_.read(slot);
  EXPECT_EQ(progress.reason, FinishReason::error);
  EXPECT_EQ(progress.error.code, Errc::never_fits);
  EXPECT_EQ(progress.error.text, std::string(kErrorBytes - 1, 'e'));
}

TEST_F(ChannelTest, TheClientKnowsWhetherAnEngineWorksOnItsRequest) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  EXPECT_EQ(client_.serving_engine(), 1u);
  EXPECT_EQ(client_.read(slot).engine, kNoEngine) << "no engine has accepted the request";
  take_one();
  EXPECT_EQ(client_.read(slot).engine, 1u);
  board_.end(0);
  write_serving_engines(memory_.answers, kNoEngine, 0);
  EXPECT_EQ(client_.read(slot).engine, kNoEngine)
      << "the slot still names the engine, but that is dead";
  engine_ = open_engine(2, 1);
  EXPECT_EQ(client_.read(slot).engine, kNoEngine) << "engine 2 has not taken it over";
  const TakenRequest taken = take_one();
  EXPECT_EQ(client_.read(slot).engine, 2u);
  engine_->sink(taken)->finished(FinishReason::error, Error{Errc::never_fits, "too long"}, {}, 0);
  write_serving_engines(memory_.answers, kNoEngine, 0);
  EXPECT_EQ(client_.read(slot).engine, 2u) << "engine 2 has finished the request";
}

TEST_F(ChannelTest, ARefusalSaysWhenToTryAgain) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  engine_->sink(take_one())
      ->finished(FinishReason::error,
                 Error{Errc::overloaded, "too much waits", std::chrono::milliseconds(250)}, {}, 0);
  const ChannelProgress progress = client_.read(slot);
  EXPECT_EQ(progress.error.code, Errc::overloaded);
  EXPECT_EQ(progress.error.retry_after, std::chrono::milliseconds(250));
}

TEST_F(ChannelTest, WhatIsRefusedLaterCountsAsRefused) {
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  const TakenRequest taken = take_one();
  EXPECT_EQ(engine_->refused(), 0u);
  engine_->sink(taken)->finished(FinishReason::error, Error{Errc::overloaded, "too much"}, {}, 0);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(engine_->refused(), 1u);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(engine_->refused(), 0u);
}

/// A ring costs the engine what its client hangs on the bell.
TEST_F(ChannelTest, ManyRefusalsAndEndsRingOnce) {
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t slot = client_.submit(token_request()).value();
    if (i < 10) body(slot).max_tokens = 0;
  }
  const auto taken = engine_->take_submitted();
  EXPECT_THAT(taken, SizeIs(10));
  EXPECT_EQ(rings(client_bell_), 1u);
  for (const TakenRequest& request : taken)
    engine_->sink(request)->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_EQ(rings(client_bell_), 0u);
  engine_->ring();
  EXPECT_EQ(rings(client_bell_), 1u);
}

TEST_F(ChannelTest, DoorbellsRingOncePerChange) {
  rings(engine_bell_);
  const std::uint32_t slot = client_.submit(token_request()).value();
  EXPECT_EQ(rings(engine_bell_), 1u);
  const auto sink = engine_->sink(take_one());
  sink->flush();
  EXPECT_EQ(rings(client_bell_), 0u);
  sink->token({7, 0, {}}, "a");
  sink->token({8, 0, {}}, "b");
  EXPECT_EQ(rings(client_bell_), 0u);
  sink->flush();
  sink->flush();
  EXPECT_EQ(rings(client_bell_), 1u);
  client_.abort(slot);
  EXPECT_EQ(rings(engine_bell_), 1u);
}

/// An engine would have to close the descriptors of what a client sends.
TEST_F(ChannelTest, AClientsEndOfABellCannotSend) {
  EXPECT_EQ(send(client_bell_.client_end.get(), "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(ChannelTest, AnAbortIsNamedOnceAndOnlyForAcceptedRequests) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  client_.abort(slot);
  EXPECT_THAT(engine_->take_aborts(), IsEmpty());
  const auto sink = engine_->sink(take_one());
  EXPECT_THAT(engine_->take_aborts(), ElementsAre(slot));
  EXPECT_THAT(engine_->take_aborts(), IsEmpty());
  sink->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_EQ(client_.read(slot).reason, FinishReason::abort);

  ASSERT_EQ(client_.submit(token_request()).value(), slot);  // the slot's next request
  take_one();
  EXPECT_THAT(engine_->take_aborts(), IsEmpty());
  client_.abort(slot);
  EXPECT_THAT(engine_->take_aborts(), ElementsAre(slot));
}

TEST_F(ChannelTest, TwoThreadsExchangeRequestsAndTokens) {
  constexpr int kRequests = 300;
  std::atomic<bool> is_over{false};
  std::thread engine([&] {
    while (!is_over.load()) {
      serve_all(4);
      std::this_thread::yield();
    }
  });
  std::set<std::uint32_t> open;
  int submitted = 0, finished = 0;
  std::size_t tokens = 0, text = 0;
  while (finished < kRequests) {
    if (submitted < kRequests && open.size() < 32) {
      open.insert(client_.submit(token_request()).value());
      ++submitted;
    }
    for (auto slot = open.begin(); slot != open.end();) {
      const ChannelProgress progress = client_.read(*slot);
      tokens += progress.tokens.size();
      text += progress.text.size();
      const bool is_finished = progress.reason != FinishReason::none;
      finished += is_finished;
      slot = is_finished ? open.erase(slot) : std::next(slot);
    }
  }
  is_over = true;
  engine.join();
  EXPECT_EQ(tokens, 4u * kRequests);
  EXPECT_EQ(text, 4u * kRequests);
}

// -- space in the heap and the slots

TEST_F(ChannelTest, ThousandsOfRequestsLeaveNoHeapFragments) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> open;
  for (int i = 0; i < 5000; ++i) {
    ChannelRequest request = token_request(1 + random() % 300, 1 + random() % 60);
    request.params.logprobs = random() % 4;
    request.most_text_bytes = random() % 3 == 0 ? 1 + random() % 999 : 0;
    if (const auto slot = client_.submit(request)) open.push_back(*slot);
    if (random() % 8 != 0) continue;
    serve_all(1);
    std::shuffle(open.begin(), open.end(), random);
    while (open.size() > random() % 40) {
      ASSERT_EQ(client_.read(open.back()).reason, FinishReason::length);
      open.pop_back();
    }
  }
  serve_all(1);
  for (const std::uint32_t slot : open) client_.read(slot);

  // Both heaps are one free range again: a request can fill them to the last 16 bytes.
  ChannelRequest all = token_request((kBytes - prompts_offset()) / 16 * 4, 1);
  all.most_text_bytes = (kBytes - answers_offset()) / 16 * 16 - 16;
  EXPECT_TRUE(client_.submit(all).has_value());
  EXPECT_FALSE(client_.submit(token_request()).has_value());
}

TEST_F(ChannelTest, WithAllSlotsInUseSubmittingFailsUntilOneIsRead) {
  ChannelRequest request = token_request(1, 1);
  request.most_text_bytes = 16;
  for (std::uint32_t i = 0; i < kChannelSlots; ++i) ASSERT_EQ(client_.submit(request).value(), i);
  const auto refused = client_.submit(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("256"));
  serve_all(1);
  EXPECT_FALSE(client_.submit(request).has_value());
  client_.read(17);
  EXPECT_EQ(client_.submit(request).value(), 17u);
}

TEST_F(ChannelTest, WithoutRoomInTheHeapSubmittingFailsAndTakesNothing) {
  const auto refused = client_.submit(token_request(1, 1u << 20));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("larger channel"));
  EXPECT_FALSE(client_.submit(token_request(1, std::numeric_limits<std::uint32_t>::max())));
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_TRUE(client_.submit(token_request(1, 20000)).has_value());
}

TEST_F(ChannelTest, AMemoryOfAnotherSizeIsRefused) {
  const auto open = [](const ChannelMemory& memory, std::size_t bytes) {
    return EngineChannel::open(1, TestBoard().join(), copy_of(memory.requests), memory.answers,
                               bytes, direct_ring(UniqueFd()));
  };
  EXPECT_FALSE(open(memory_, kBytes * 2).has_value());
  const auto opened = open(make_channel_memory(4096), 4096);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, Errc::bad_format);
}

struct OtherHeader {
  std::string field;
  void (*change)(ChannelHeader&);
  std::string theirs, ours;
};

TEST_F(ChannelTest, AHeaderOfAnotherBuildIsRefusedByBothEnds) {
  const std::string slot_bytes = std::to_string(sizeof(AnswerSlot));
  const std::string body_bytes = std::to_string(sizeof(RequestBody));
  const OtherHeader cases[] = {
      {"magic", [](ChannelHeader& h) { h.magic = 17; }, "17", std::to_string(kChannelMagic)},
      {"size in bytes", [](ChannelHeader& h) { h.bytes = 18; }, "18", std::to_string(kBytes)},
      {"slot_bytes", [](ChannelHeader& h) { h.slot_bytes = 19; }, "19", slot_bytes},
      {"body_bytes", [](ChannelHeader& h) { h.body_bytes = 21; }, "21", body_bytes},
      {"slots", [](ChannelHeader& h) { h.slots = 20; }, "20", std::to_string(kChannelSlots)}};
  for (const OtherHeader& other : cases) {
    const ChannelMemory memory = make_channel_memory(kBytes);
    ChannelHeader header;
    header.bytes = kBytes;
    other.change(header);
    ASSERT_EQ(pwrite(memory.answers.get(), &header, sizeof header, 0), ssize_t{sizeof header});
    const auto engine = EngineChannel::open(1, TestBoard().join(), copy_of(memory.requests),
                                            memory.answers, kBytes, direct_ring(UniqueFd()));
    const auto client =
        ClientChannel::open(copy_of(memory.requests), memory.answers, kBytes, UniqueFd());
    ASSERT_FALSE(engine.has_value()) << other.field;
    ASSERT_FALSE(client.has_value()) << other.field;
    for (const Error& error : {engine.error(), client.error()}) {
      EXPECT_EQ(error.code, Errc::layout_mismatch);
      EXPECT_THAT(error.text, HasSubstr(other.field + " is " + other.theirs + ","));
      EXPECT_THAT(error.text, HasSubstr("is " + other.ours + ";"));
    }
  }
}

// -- refusals

struct BadRequest {
  std::string name;
  void (*spoil)(ChannelRequest&);
  std::string text;
};

class ChannelRefusal : public ChannelTest, public ::testing::WithParamInterface<BadRequest> {};

TEST_P(ChannelRefusal, SaysWhatIsWrong) {
  ChannelRequest request = token_request();
  GetParam().spoil(request);
  const auto refused = client_.submit(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::bad_argument);
  EXPECT_THAT(refused.error().text, HasSubstr(GetParam().text));
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const BadRequest kBadRequests[] = {
    {"EmptyPrompt", [](ChannelRequest& r) { r.prompt_tokens.clear(); }, "prompt is empty"},
    {"NoTokens", [](ChannelRequest& r) { r.params.max_tokens = 0; }, "max_tokens is 0"},
    {"Logprobs", [](ChannelRequest& r) { r.params.logprobs = 21; }, "logprobs is 21; at most 20"},
    {"StopStrings", [](ChannelRequest& r) { r.params.stop.assign(9, "x"); }, "9 stop strings"},
    {"EmptyStop", [](ChannelRequest& r) { r.params.stop = {""}; }, "1..64 bytes"},
    {"LongStop", [](ChannelRequest& r) { r.params.stop = {std::string(65, 'x')}; }, "1..64 bytes"},
    {"StopTokens", [](ChannelRequest& r) { r.params.stop_token_ids.assign(17, 1); },
     "17 stop tokens"},
    {"CacheSalt", [](ChannelRequest& r) { r.params.cache_salt.assign(129, 's'); },
     "cache_salt has 129 bytes; at most 128"},
    {"Adapter", [](ChannelRequest& r) { r.params.adapter.assign(65, 'a'); },
     "adapter has 65 bytes; names have at most 64"},
    {"Temperature", [](ChannelRequest& r) { r.params.sampling.temperature = -1; }, "temperature"},
    {"TemperatureNaN", [](ChannelRequest& r) { r.params.sampling.temperature = kNaN; },
     "temperature"},
    {"TopK", [](ChannelRequest& r) { r.params.sampling.top_k = -2; }, "top_k"},
    {"TopP", [](ChannelRequest& r) { r.params.sampling.top_p = 0; }, "top_p"},
    {"MinP", [](ChannelRequest& r) { r.params.sampling.min_p = 1.5f; }, "min_p"},
    {"Penalty", [](ChannelRequest& r) { r.params.rules.presence_penalty = 3; }, "presence_penalty"},
    {"MinTokens", [](ChannelRequest& r) { r.params.rules.min_tokens = r.params.max_tokens + 1; },
     "at most max_tokens"},
    {"BadWord", [](ChannelRequest& r) { r.params.rules.bad_words = {""}; }, "bad_words"},
};
INSTANTIATE_TEST_SUITE_P(All, ChannelRefusal, ::testing::ValuesIn(kBadRequests),
                         [](const auto& given) { return given.param.name; });

// -- takeover

TEST_F(ChannelTest, AnotherEngineContinuesAJournalAndTheClientSeesEachTokenOnce) {
  ChannelRequest request = token_request(3, 5);
  request.params.logprobs = 1;
  const std::uint32_t slot = client_.submit(request).value();
  {
    const auto sink = engine_->sink(take_one());
    sink->admitted({3, 0, 0});
    sink->token({7, -1, {{7, -1}}}, "a");
    sink->token({8, -2, {{8, -2}}}, "bc");
    EXPECT_THAT(client_.read(slot).tokens, SizeIs(2));
    sink->token({9, -3, {{9, -3}}}, "d");  // not read yet
  }
  engine_.reset();

  engine_ = open_engine(2);
  const TakenRequest taken = take_one();
  EXPECT_EQ(taken.slot, slot);
  EXPECT_EQ(taken.tokens, counting(100, 3));
  EXPECT_THAT(taken.journal, ElementsAre(7, 8, 9));
  const auto sink = engine_->sink(taken);
  sink->token({7, 0, {}}, "a");  // the scheduler replays the journal, without logprobs
  sink->token({8, 0, {}}, "bc");
  sink->token({9, 0, {}}, "d");
  sink->token({10, -4, {{10, -4}}}, "e");
  sink->finished(FinishReason::stop, {}, {3, 2, 0}, 5);
  const ChannelProgress progress = client_.read(slot);
  ASSERT_THAT(progress.tokens, SizeIs(2));
  EXPECT_EQ(progress.tokens[0].token, 9);
  EXPECT_EQ(progress.tokens[0].logprob, -3);
  EXPECT_EQ(progress.tokens[1].token, 10);
  EXPECT_EQ(progress.text, "de");
  EXPECT_EQ(progress.engine, 2u);
  EXPECT_EQ(progress.reason, FinishReason::stop);
}

/// Otherwise a client could have the scheduler replay, for a new request, what its slot held
/// before.
TEST_F(ChannelTest, ANewRequestHasNothingOfTheLastOneInItsSlot) {
  const std::uint32_t slot = client_.submit(token_request(3, 4)).value();
  serve_all(3);
  EXPECT_THAT(client_.read(slot).tokens, SizeIs(3));
  ASSERT_EQ(client_.submit(token_request(3, 4)).value(), slot);
  EXPECT_THAT(client_.read(slot).tokens, IsEmpty()) << "the slot's answer is the last request's";
  EXPECT_THAT(take_one().journal, IsEmpty());
  EXPECT_THAT(client_.read(slot).tokens, IsEmpty());
  engine_ = open_engine(2);
  EXPECT_THAT(take_one().journal, IsEmpty());
}

TEST_F(ChannelTest, JournalsCountInATurn) {
  const std::uint32_t first = client_.submit(token_request(1, 100)).value();
  client_.submit(token_request(1, 1)).value();
  engine_->take_submitted();
  answer(first).tokens = 100;
  engine_ = open_engine(2);
  EXPECT_THAT(engine_->take_submitted({}, 100 * sizeof(LogRecord)), SizeIs(1));
  EXPECT_TRUE(engine_->has_more());
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
}

TEST_F(ChannelTest, ATakeoverCarriesTheFirstAdmissionsCounts) {
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  const TakenRequest first = take_one();
  EXPECT_FALSE(first.earlier_admission.has_value());
  engine_ = open_engine(2);
  EXPECT_FALSE(take_one().earlier_admission.has_value())
      << "the request was accepted, but never admitted";
  engine_ = open_engine(3);
  const TakenRequest third = take_one();
  engine_->sink(third)->admitted({3, 2, 1});
  engine_ = open_engine(4);
  const TakenRequest last = take_one();
  ASSERT_TRUE(last.earlier_admission.has_value());
  EXPECT_EQ(last.earlier_admission->prompt_tokens, 3u);
  EXPECT_EQ(last.earlier_admission->cached_tokens, 2u);
  EXPECT_EQ(last.earlier_admission->preemptions, 1u);
}

TEST_F(ChannelTest, ATakeoverGoesOnWithTheTimesOfTheFirstEngine) {
  const std::uint32_t slot = client_.submit(token_request(3, 4)).value();
  const TakenRequest first = take_one();
  EXPECT_NE(first.times.taken, 0u);
  EXPECT_EQ(first.times.admitted, 0u);
  EXPECT_EQ(first.times.first_token, 0u);
  engine_->sink(first)->note({first.times.taken, 5, 7});
  engine_ = open_engine(2);
  const TakenRequest second = take_one();
  EXPECT_EQ(second.times.taken, first.times.taken);
  EXPECT_EQ(second.times.admitted, 5u);
  EXPECT_EQ(second.times.first_token, 7u);
  EXPECT_TRUE(engine_->sink(second)->finished(FinishReason::abort, {}, {}, 0));
  EXPECT_EQ(client_.read(slot).reason, FinishReason::abort);
  ASSERT_EQ(client_.submit(token_request(3, 4)).value(), slot);
  const TakenRequest next = take_one();
  EXPECT_GE(next.times.taken, second.times.taken);
  EXPECT_EQ(next.times.admitted, 0u) << "these are the last request's";
  EXPECT_EQ(next.times.first_token, 0u);
}

TEST_F(ChannelTest, ANewEngineTakesSubmittedAndAcceptedRequestsOnly) {
  const std::uint32_t accepted = client_.submit(token_request()).value();
  const std::uint32_t finished = client_.submit(token_request()).value();
  for (const TakenRequest& taken : engine_->take_submitted())
    if (taken.slot == finished) engine_->sink(taken)->finished(FinishReason::length, {}, {}, 0);
  const std::uint32_t submitted = client_.submit(token_request()).value();

  engine_ = open_engine(2);
  const auto taken = engine_->take_submitted();
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[0].slot, accepted);
  EXPECT_EQ(taken[1].slot, submitted);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(client_.read(finished).reason, FinishReason::length);
}

TEST_F(ChannelTest, ARequestThatKillsItsEnginesIsRefusedAtTheFourthTakeover) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  run(take_one());
  for (std::uint32_t died = 1; died <= kMostTakeovers; ++died) {
    engine_ = open_engine(1);
    run(take_one());
  }
  EXPECT_EQ(client_.read(slot).reason, FinishReason::none);
  engine_ = open_engine(1);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  const ChannelProgress end = client_.read(slot);
  EXPECT_EQ(end.reason, FinishReason::error);
  EXPECT_EQ(end.error.code, Errc::peer_died);
  EXPECT_EQ(end.error.text, "its engine died 4 times while serving it; not tried again");

  ASSERT_EQ(client_.submit(token_request()).value(), slot) << "the slot's next request";
  take_one();
  engine_ = open_engine(1);
  take_one();
}

TEST_F(ChannelTest, ARequestThatOnlyWaitsIsNotBlamedForTheDeathOfItsEngines) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  const TakenRequest first = take_one();
  const auto sink = engine_->sink(first);
  ASSERT_TRUE(sink->start());
  sink->preempted();
  for (std::uint32_t died = 1; died <= kMostTakeoversWaiting; ++died) {
    engine_ = open_engine(1);
    take_one();
  }
  EXPECT_EQ(client_.read(slot).reason, FinishReason::none);
  engine_ = open_engine(1);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty()) << "but not for ever";
  EXPECT_EQ(client_.read(slot).error.text,
            "its engine died 33 times while it waited; not tried again");
}

/// The engine stored the end of a request and died before it rang. The next engine finds nothing to
/// take, and must ring nevertheless.
TEST_F(ChannelTest, ANewEngineRingsForWhatADeadEngineWroteWithoutRinging) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  const auto sink = engine_->sink(take_one());
  rings(client_bell_);
  sink->token({7, 0, {}}, "x");
  sink->finished(FinishReason::length, {}, {}, 1);  // and no flush()
  engine_ = open_engine(2);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(rings(client_bell_), 1u);
  EXPECT_EQ(client_.read(slot).reason, FinishReason::length);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(rings(client_bell_), 0u);
}

TEST_F(ChannelTest, ARequestThatGainsTokensMayOutliveManyEngines) {
  const std::uint32_t slot = client_.submit(token_request(3, 40)).value();
  for (std::uint32_t died = 0; died < 10; ++died) {
    const TakenRequest taken = take_one();
    ASSERT_EQ(taken.journal.size(), died);
    const auto sink = engine_->sink(taken);
    ASSERT_TRUE(sink->start());
    for (std::uint32_t i = 0; i <= died; ++i) sink->token({7, 0, {}}, "x");
    engine_ = open_engine(1);
  }
  EXPECT_EQ(client_.read(slot).reason, FinishReason::none);
  for (std::uint32_t died = 1; died < kMostTakeovers; ++died) {
    run(take_one());
    engine_ = open_engine(1);
  }
  run(take_one());
  engine_ = open_engine(1);
  EXPECT_THAT(engine_->take_submitted(), IsEmpty()) << "the last engines wrote no new token";
}

/// A client that has submitted 2^32 requests in one slot numbers them anew.
TEST_F(ChannelTest, AnAbortIsNotOfARequestWithTheSameNumberLater) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  client_.abort(slot);
  engine_->sink(take_one())->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_EQ(client_.read(slot).reason, FinishReason::abort);
  ASSERT_EQ(client_.submit(token_request()).value(), slot);
  EXPECT_NE(mark(slot).aborted, 1u);
}

TEST_F(ChannelTest, AbortsAreTakenInPieces) {
  for (int i = 0; i < 5; ++i) client_.abort(client_.submit(token_request()).value());
  engine_->take_submitted();
  EXPECT_THAT(engine_->take_aborts(3), ElementsAre(0, 1, 2));
  EXPECT_TRUE(engine_->has_more());
  EXPECT_THAT(engine_->take_aborts(3), ElementsAre(3, 4));
  EXPECT_FALSE(engine_->has_more());
}

TEST_F(ChannelTest, AnAbortSurvivesTheEngine) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  take_one();
  client_.abort(slot);
  engine_->take_aborts();
  engine_ = open_engine(2);
  take_one();
  EXPECT_THAT(engine_->take_aborts(), ElementsAre(slot));
}

// -- hostile clients

__extension__ typedef unsigned __int128 Wide;  // for sums that must not overflow

/// A client that writes arbitrary bytes into its file. The pages before and after the engine's
/// mapping of the answers are not accessible, so that an access outside them is a fault.
class HostileClient : public ChannelTest {
 protected:
  static constexpr std::uint32_t kWidth = 3;  ///< of embeddings

  HostileClient() {
    std::vector<std::shared_ptr<EngineChannel>> unguarded;
    for (int attempt = 0; attempt < 64; ++attempt) {
      unguarded.push_back(engine_);
      add_guard();
      const auto before = all_maps();
      engine_ = open_engine(1);
      add_guard();
      if (is_new_map_guarded(before)) return;
    }
    KV_CHECK(false);
  }
  ~HostileClient() override {
    for (void* guard : guards_) munmap(guard, kGuardBytes);
  }

  std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  bool one_in(std::uint64_t n) { return pick(1, n) == 1; }

  /// A valid request with ranges at random places in the heap.
  RequestBody sound_body() {
    RequestBody body{};
    const auto range = [&](std::uint64_t heap, std::uint64_t most, std::uint64_t alignment) {
      const std::uint64_t bytes = pick(1, most) * alignment;
      const std::uint64_t offset = pick(heap, kBytes - bytes) / 16 * 16;
      return ChannelRange{std::max(offset, heap), bytes};
    };
    body.prompt_kind = static_cast<PromptKind>(pick(0, 2));
    body.embedding_width = kWidth;
    body.prompt = range(prompts_offset(), 64, kWidth * sizeof(float));
    body.max_tokens = static_cast<std::uint32_t>(pick(1, 20));
    body.logprobs = one_in(3) ? static_cast<std::uint32_t>(pick(1, kMostLogprobs)) : 0;
    body.log = range(answers_offset(), 1, 4);
    body.log.bytes = body.max_tokens * record_bytes(body.logprobs);
    body.log.offset = std::min<std::uint64_t>(body.log.offset, (kBytes - body.log.bytes) / 16 * 16);
    body.text = range(answers_offset(), 300, 1);
    if (body.prompt_kind != PromptKind::embeddings && one_in(3)) {
      body.prompt_logprobs = static_cast<std::uint32_t>(pick(0, kMostLogprobs));
      body.prompt_log = range(answers_offset(), 1, 4);
      body.prompt_log.bytes = body.prompt.bytes * record_bytes(body.prompt_logprobs);
      body.prompt_log.offset = std::min<std::uint64_t>(body.prompt_log.offset,
                                                       (kBytes - body.prompt_log.bytes) / 16 * 16);
    }
    body.top_p = body.repetition_penalty = 1;
    if (one_in(3)) {
      body.presence_penalty = -1;
      body.min_tokens = static_cast<std::uint32_t>(pick(0, body.max_tokens));
      body.rule_counts = {static_cast<std::uint32_t>(pick(0, 3)),
                          static_cast<std::uint32_t>(pick(1, 50)), 0};
      body.rule_lists = range(prompts_offset(), 1, 4);
      body.rule_lists.bytes = body.rule_counts.biases * 8 + body.rule_counts.allowed * 4;
      body.rule_lists.offset = std::min<std::uint64_t>(body.rule_lists.offset,
                                                       (kBytes - body.rule_lists.bytes) / 16 * 16);
    }
    body.stop_count = static_cast<std::uint32_t>(pick(0, kMostStopStrings));
    for (std::uint32_t i = 0; i < body.stop_count; ++i)
      body.stop_bytes[i] = static_cast<std::uint32_t>(pick(1, kStopBytes));
    body.stop_token_count = static_cast<std::uint32_t>(pick(0, kMostStopTokens));
    body.salt_bytes = one_in(3) ? static_cast<std::uint32_t>(pick(1, kSaltBytes)) : 0;
    body.adapter_bytes = one_in(3) ? static_cast<std::uint32_t>(pick(1, kAdapterBytes)) : 0;
    return body;
  }

  void spoil(RequestBody& body) {
    auto* const bytes = reinterpret_cast<unsigned char*>(&body);
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t edges[] = {0,
                                   1,
                                   prompts_offset() - 16,
                                   prompts_offset(),
                                   prompts_offset() + 1,
                                   answers_offset() - 16,
                                   answers_offset(),
                                   answers_offset() + 1,
                                   answers_offset() + 2,
                                   kBytes - 16,
                                   kBytes - 4,
                                   kBytes - 1,
                                   kBytes,
                                   kBytes + 1,
                                   1ull << 31,
                                   1ull << 32,
                                   (1ull << 32) + answers_offset(),
                                   1ull << 63,
                                   kMost - kBytes,
                                   kMost - answers_offset() + 1,
                                   kMost - 15,
                                   kMost};
    switch (pick(0, 4)) {
      case 0:  // a few random bytes
        for (std::uint64_t i = pick(1, 8); i > 0; --i)
          bytes[pick(0, sizeof body - 1)] = static_cast<unsigned char>(random_());
        break;
      case 1:  // only random bytes
        for (std::size_t i = 0; i < sizeof body; ++i)
          bytes[i] = static_cast<unsigned char>(random_());
        break;
      case 2: {  // ranges at the edges
        ChannelRange* const ranges[] = {&body.prompt, &body.log, &body.text, &body.prompt_log,
                                        &body.rule_lists};
        ChannelRange& range = *ranges[pick(0, 4)];
        if (!one_in(3)) range.offset = edges[pick(0, std::size(edges) - 1)];
        if (!one_in(3)) range.bytes = edges[pick(0, std::size(edges) - 1)];
        break;
      }
      case 3: {  // counts at the edges
        std::uint32_t* const counts[] = {&body.max_tokens,
                                         &body.logprobs,
                                         &body.stop_count,
                                         &body.stop_token_count,
                                         &body.stop_bytes.front(),
                                         &body.stop_bytes.back(),
                                         &body.salt_bytes,
                                         &body.adapter_bytes,
                                         &body.prompt_logprobs,
                                         &body.min_tokens,
                                         &body.rule_counts.biases,
                                         &body.rule_counts.allowed,
                                         &body.rule_counts.bad_words,
                                         &body.embedding_width};
        constexpr std::uint32_t kCounts[] = {
            0, 1, 8, 9, 16, 17, 20, 21, 64, 65, 128, 129, 0x10000000, 0x7fffffff, 0x80000000, ~0u};
        *counts[pick(0, std::size(counts) - 1)] = kCounts[pick(0, std::size(kCounts) - 1)];
        break;
      }
      case 4:  // ranges that overlap or are misaligned
        body.log.offset = body.prompt.offset + pick(0, 8);
        body.text.offset = body.log.offset + pick(0, 8);
        break;
    }
  }

  /// Whether a request may be taken, by the rules in channel_layout.hpp's comments.
  static bool is_sound(const RequestBody& body) {
    const auto lies_in = [](std::size_t heap, const ChannelRange& range, std::uint64_t alignment) {
      const Wide end = static_cast<Wide>(range.offset) + range.bytes;
      return range.offset >= heap && end <= kBytes && range.offset % alignment == 0;
    };
    const bool is_tokens = body.prompt_kind == PromptKind::tokens;
    const bool is_embedded = body.prompt_kind == PromptKind::embeddings;
    if (!is_tokens && !is_embedded && body.prompt_kind != PromptKind::text) return false;
    if (body.prompt.bytes == 0 ||
        !lies_in(prompts_offset(), body.prompt, is_tokens || is_embedded ? 4 : 1))
      return false;
    if (is_tokens && body.prompt.bytes % 4 != 0) return false;
    if (is_embedded && (body.embedding_width != kWidth || body.prompt_log.bytes != 0 ||
                        body.prompt.bytes % (kWidth * 4) != 0))
      return false;
    if (body.max_tokens == 0 || body.logprobs > kMostLogprobs) return false;
    const Wide log = static_cast<Wide>(body.max_tokens) * record_bytes(body.logprobs);
    if (!lies_in(answers_offset(), body.log, 4) || log > body.log.bytes) return false;
    if (!lies_in(answers_offset(), body.text, 1)) return false;
    if (body.prompt_log.bytes != 0) {
      const Wide scores = static_cast<Wide>(is_tokens ? body.prompt.bytes / 4 : 1) *
                          record_bytes(body.prompt_logprobs);
      if (body.prompt_logprobs > kMostLogprobs || scores > body.prompt_log.bytes ||
          !lies_in(answers_offset(), body.prompt_log, 4))
        return false;
    }
    if (body.stop_count > kMostStopStrings || body.stop_token_count > kMostStopTokens) return false;
    for (std::uint32_t i = 0; i < body.stop_count; ++i)
      if (body.stop_bytes[i] == 0 || body.stop_bytes[i] > kStopBytes) return false;
    if (body.salt_bytes > kSaltBytes || body.adapter_bytes > kAdapterBytes) return false;
    if (!checked({body.temperature, body.top_k, body.top_p, body.min_p, body.seed})) return false;
    if (!check({.presence_penalty = body.presence_penalty,
                .frequency_penalty = body.frequency_penalty,
                .repetition_penalty = body.repetition_penalty}) ||
        body.min_tokens > body.max_tokens)
      return false;
    const auto& [biases, allowed, words] = body.rule_counts;
    if (biases > kMostBiases || allowed > kMostAllowedTokens || words > kMostBadWords) return false;
    const Wide lists = Wide{biases} * 8 + Wide{allowed} * 4 + Wide{words} * 4;
    if (body.rule_lists.bytes < lists || body.rule_lists.bytes > lists + Wide{words} * 64)
      return false;
    return body.rule_lists.bytes == 0 || lies_in(prompts_offset(), body.rule_lists, 4);
  }

  std::mt19937_64 random_{20240607};

 private:
  static constexpr std::size_t kGuardBytes = 4 * kBytes;

  /// Maps a guard larger than the channel. The kernel puts it where the channel would have gone, so
  /// that the next mapping of the channel lies below it.
  void add_guard() {
    void* guard = mmap(nullptr, kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(guard != MAP_FAILED);
    guards_.push_back(guard);
  }

  struct Map {
    std::uintptr_t begin, end;
    bool is_accessible, is_channel;
  };
  static std::vector<Map> all_maps() {
    std::vector<Map> maps;
    std::ifstream file("/proc/self/maps");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      Map map{};
      char dash;
      std::string access;
      words >> std::hex >> map.begin >> dash >> map.end >> access;
      map.is_accessible = access.substr(0, 3) != "---";
      map.is_channel = line.find("memfd:kvhive-answers") != std::string::npos;
      maps.push_back(map);
    }
    return maps;
  }

  /// Whether the mapping of the channel that is not among `before` has no accessible neighbour.
  static bool is_new_map_guarded(const std::vector<Map>& before) {
    const auto is_known = [&](const Map& map) {
      return std::any_of(before.begin(), before.end(),
                         [&](const Map& known) { return known.begin == map.begin; });
    };
    const std::vector<Map> maps = all_maps();
    for (std::size_t i = 1; i + 1 < maps.size(); ++i) {
      if (!maps[i].is_channel || is_known(maps[i])) continue;
      const bool below = maps[i - 1].end == maps[i].begin && maps[i - 1].is_accessible;
      const bool above = maps[i + 1].begin == maps[i].end && maps[i + 1].is_accessible;
      return maps[i].end - maps[i].begin == kBytes && !below && !above;
    }
    return false;  // merged with another one
  }

  std::vector<void*> guards_;
};

TEST_F(HostileClient, NeverMakesTheEngineAccessMemoryOutsideAndIsToldEveryRefusal) {
  constexpr int kRounds = 400;  // 256 slots per round
  std::size_t taken_in_all = 0, refused_in_all = 0;
  std::vector<RequestBody> bodies(kChannelSlots);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<bool> may_be_taken(kChannelSlots);
    for (std::uint32_t i = 0; i < kChannelSlots; ++i) {
      bodies[i] = sound_body();
      if (!one_in(6)) spoil(bodies[i]);
      may_be_taken[i] = is_sound(bodies[i]);
      submit_raw(requests(), i, bodies[i]);
      bodies[i].number = mark(i).submitted;
    }
    const std::vector<std::byte> header(answers_.data(), answers_.data() + slots_offset());

    std::vector<bool> was_taken(kChannelSlots);
    for (bool has_more = true; has_more;) {  // some wait until there is memory for them
      const std::vector<TakenRequest> taken = engine_->take_submitted({.embedding_width = kWidth});
      has_more = !taken.empty();
      taken_in_all += taken.size();
      for (const TakenRequest& request : taken) {
        was_taken[request.slot] = true;
        if (one_in(2)) spoil(body(request.slot));  // it was copied already
        const auto sink = engine_->sink(request);
        sink->admitted({1, 1, 0});
        const std::uint64_t tokens = std::min<std::uint64_t>(request.params.max_tokens, 30) + 2;
        const std::string text(pick(0, 40), 't');
        const GeneratedToken token{7, -1, std::vector<Sampled>(pick(0, 24))};
        for (std::uint64_t t = 0; t < tokens; ++t) sink->token(token, text);
        sink->finished(FinishReason::length, {}, {}, tokens * text.size());
        sink->flush();
        ASSERT_TRUE(is_finished(request.slot));
      }
    }
    for (std::uint32_t i = 0; i < kChannelSlots; ++i) {
      ASSERT_EQ(was_taken[i], may_be_taken[i]) << "slot " << i << " of round " << round;
      if (was_taken[i]) continue;
      ++refused_in_all;
      ASSERT_TRUE(is_finished(i));
      ASSERT_EQ(answer(i).reason, FinishReason::error);
      ASSERT_EQ(answer(i).error, static_cast<std::uint32_t>(Errc::bad_argument));
      ASSERT_GT(std::strlen(answer(i).error_text.data()), 10u);
    }
    // The engine wrote no text or log into the header or the slot table.
    ASSERT_EQ(std::memcmp(header.data(), answers_.data(), header.size()), 0);
    for (std::uint32_t i = 0; i < kChannelSlots; ++i) {
      ASSERT_EQ(answer(i).state.load().number, bodies[i].number) << "slot " << i;
      // All but the last field, after which there may be padding.
      ASSERT_EQ(std::memcmp(&answer(i).body, &bodies[i], offsetof(RequestBody, stop_tokens)), 0);
    }
  }
  EXPECT_GT(taken_in_all, 10000u);  // fewer would prove little
  EXPECT_GT(refused_in_all, 50000u);
}

TEST_F(HostileClient, CanWriteAnythingAnywhereBeforeItsPrompts) {
  for (int round = 0; round < 300; ++round) {
    const std::span<std::byte> table = client_.raw_requests().first(prompts_offset());
    for (int i = 0; i < 4000; ++i)
      table[pick(0, table.size() - 1)] = static_cast<std::byte>(random_());
    for (std::uint32_t i = 0; i < kChannelSlots; ++i)
      if (one_in(3)) submit_raw(requests(), i, sound_body());
    if (one_in(4)) engine_ = open_engine(2);
    for (const TakenRequest& request : engine_->take_submitted()) {
      if (one_in(4)) continue;  // the next engine takes it over
      const auto sink = engine_->sink(request);
      for (int t = 0; t < 5; ++t) sink->token({7, 0, {{1, 0}, {2, 0}}}, "text");
      sink->finished(FinishReason::length, {}, {}, ~std::size_t{0});
    }
    engine_->take_aborts();
  }
}

/// Otherwise a client could have all its slots refused in one turn, again and again.
TEST_F(HostileClient, RequestsThatAreRefusedCostATurn) {
  for (std::uint32_t i = 0; i < kChannelSlots; ++i) submit_raw(requests(), i, RequestBody{});
  const auto refused = [&] {
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < kChannelSlots; ++i) count += is_finished(i) ? 1 : 0;
    return count;
  };
  EXPECT_THAT(engine_->take_submitted({}, 4 * EngineChannel::kRequestCost), IsEmpty());
  EXPECT_EQ(refused(), 4u);
  EXPECT_TRUE(engine_->has_more());
  engine_->take_submitted();
  EXPECT_EQ(refused(), kChannelSlots);
  EXPECT_FALSE(engine_->has_more());
}

TEST_F(HostileClient, RequestsForWhichThereIsNoMemoryWaitInTheirSlots) {
  for (std::uint32_t i = 0; i < kChannelSlots; ++i) {
    RequestBody body = sound_body();
    body.prompt_kind = PromptKind::text;
    body.prompt = {prompts_offset(), kBytes / 32};  // all name the same bytes
    submit_raw(requests(), i, body);
  }
  std::size_t calls = 0;
  engine_->on_change([&] { ++calls; });
  const std::size_t each = kBytes / 32 * (1 + kTokenMemory);
  std::vector<TakenRequest> taken = engine_->take_submitted();
  ASSERT_THAT(taken, SizeIs(kMemoryPerChannelByte * kBytes / (each + kRequestMemory)));
  EXPECT_FALSE(engine_->has_more()) << "it would be called without end";
  EXPECT_EQ(answer(255).state.load(), SlotState{}) << "not accepted";
  EXPECT_EQ(calls, 0u);
  taken.pop_back();
  EXPECT_EQ(calls, 1u);
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
  taken.front().held->settle(100, 100, {});
  EXPECT_EQ(calls, 2u) << "the text was shorter than it might have been";
}

TEST_F(HostileClient, OneRequestIsTakenWhateverItNeeds) {
  for (const std::uint32_t i : {0u, 1u}) {
    RequestBody body = sound_body();
    body.prompt_kind = PromptKind::text;
    body.prompt = {prompts_offset(), kBytes - prompts_offset()};
    submit_raw(requests(), i, body);
  }
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
}

/// What an engine holds for the requests of one channel is bounded by the number of slots, too: a
/// slot's next request is taken when the last one has ended.
TEST_F(HostileClient, ASlotHasOneRequestAtATime) {
  submit_raw(requests(), 0, sound_body());
  const TakenRequest first = take_one();
  submit_raw(requests(), 0, sound_body());
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  engine_->sink(first)->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
}

TEST_F(HostileClient, ABodyRewrittenAfterItWasTakenChangesNothing) {
  const std::uint32_t slot = client_.submit(token_request(3, 4)).value();
  const TakenRequest taken = take_one();
  body(slot).log.offset = body(slot).text.offset = 0;
  body(slot).max_tokens = 1;
  engine_->sink(taken)->token({7, 0, {}}, "text");
  engine_ = open_engine(2);
  const TakenRequest again = take_one();
  EXPECT_EQ(again.params.max_tokens, 4u);
  EXPECT_THAT(again.journal, ElementsAre(7));
  EXPECT_EQ(client_.read(slot).text, "text");
}

/// A read of a mark at the same time as a write may see half of each. The client's ring comes after
/// the write, and then the engine looks again.
TEST_F(HostileClient, ARequestWithoutItsMarksNumberIsRefusedAndTheRealOneIsTaken) {
  const std::uint32_t slot = client_.submit(token_request()).value();
  mark(slot).submitted = 0x01000001;
  EXPECT_THAT(engine_->take_submitted(), IsEmpty());
  EXPECT_EQ(client_.read(slot).reason, FinishReason::none) << "it is another request's answer";
  mark(slot).submitted = 1;
  EXPECT_THAT(engine_->take_submitted(), SizeIs(1));
}

TEST_F(HostileClient, APromptThatIsErasedAfterItWasTakenReadsAsZerosAtATakeover) {
  ASSERT_TRUE(client_.submit(token_request()).has_value());
  EXPECT_THAT(take_one().tokens, SizeIs(3));
  std::memset(client_.raw_requests().data(), 0, kBytes);
  engine_ = open_engine(2);
  EXPECT_THAT(take_one().tokens, ElementsAre(0, 0, 0));
}

/// The client pays for its prompts with its own memory.
TEST_F(ChannelTest, RequestsGetMemoryAsPromptsNeedIt) {
  const auto blocks = [&] {
    struct stat status {};
    KV_CHECK(fstat(memory_.requests.get(), &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  EXPECT_LT(blocks(), kBytes / 2);
  ASSERT_TRUE(client_.submit(token_request((kBytes - prompts_offset()) / 8)).has_value());
  EXPECT_GT(blocks(), kBytes / 2);
}

}  // namespace
}  // namespace kvhive::testing
