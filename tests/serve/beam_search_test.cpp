// Beam search: decided as vLLM's decides on the same log-probabilities, and whole, through a
// service and its engines.

#include "tools/serve/openai/beam_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "tests/support/signal_process.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/serve/served.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

OutputToken likeliest(const Json& top) {
  OutputToken next;
  for (const Json& entry : top) next.top.push_back({entry[0], entry[1]});
  return next;
}

std::vector<TokenId> ids_of(const Beam& beam) {
  std::vector<TokenId> ids;
  for (const Beam::Token& token : beam.tokens) ids.push_back(token->token);
  return ids;
}

/// A line of the record (tests/beside/vllm_beams.py): which beams vLLM extended in each step, the
/// log-probabilities that it was told of them, and what it found the best.
void compare(const Json& recorded) {
  BeamSearch search({recorded["width"], recorded["max_tokens"], recorded["length_penalty"],
                     recorded["ends"], recorded["ignore_eos"]});
  for (const Json& step : recorded["steps"]) {
    ASSERT_EQ(search.beams().size(), step.size());
    std::vector<OutputToken> next;
    for (std::size_t i = 0; i < step.size(); ++i) {
      EXPECT_EQ(Json(ids_of(search.beams()[i])), step[i]["tokens"]);
      next.push_back(likeliest(step[i]["top"]));
    }
    search.extend(next);
  }
  EXPECT_TRUE(search.beams().empty());
  const std::vector<Beam> best = search.take_best();
  ASSERT_EQ(best.size(), recorded["best"].size());
  for (std::size_t i = 0; i < best.size(); ++i) {
    const Json& wanted = recorded["best"][i];
    EXPECT_EQ(Json(ids_of(best[i])), wanted["tokens"]);
    EXPECT_NEAR(best[i].logprob, wanted["logprob"].get<double>(), 1e-5);
    EXPECT_EQ(best[i].end ? Json(best[i].end->token) : Json(), wanted["stop_reason"]);
  }
}

TEST(BeamSearch, DecidesAsVllmDoes) {
  const char* const fresh = std::getenv("KVHIVE_VLLM_BEAMS");
  std::ifstream file(fresh != nullptr ? fresh : KVHIVE_VLLM_BEAMS_RECORD);
  int searches = 0;
  for (std::string line; std::getline(file, line); ++searches) {
    SCOPED_TRACE(line.substr(0, 200));
    compare(Json::parse(line));
    if (HasFailure()) break;
  }
  EXPECT_GE(searches, 60);
}

/// Else a long search with many ends takes gigabytes.
TEST(BeamSearch, KeepsNoMoreEndedBeamsThanItTells) {
  BeamSearch search({2, 50, 1, {9}, false});
  for (int step = 0; step < 50; ++step) {
    OutputToken next;
    next.top = {{4, -0.5f}, {5, -0.75f}, {9, -1.0f}, {6, -2.0f}};
    search.extend(std::vector<OutputToken>(search.beams().size(), next));
  }
  EXPECT_EQ(search.take_best().size(), 2u);
}

class Beams : public ::testing::Test {
 protected:
  Json ask(const Json& request) const {
    return service_.ask(post(kCompletions, request.dump())).json();
  }

  const Daemon daemon_{{"--engines", "2", "--kv-cache-memory-bytes", "32M"}};
  const Service service_{daemon_.socket()};
};

Json beams(const std::string& prompt, int width, int max_tokens) {
  return {{"prompt", prompt},        {"n", width},       {"max_tokens", max_tokens},
          {"use_beam_search", true}, {"temperature", 0}, {"return_token_ids", true},
          {"ignore_eos", true}};
}

/// The same search, written anew over the log-probabilities that the service tells of a prompt's
/// next token.
struct Written {
  std::vector<TokenId> tokens;
  double logprob = 0;
};

std::vector<Written> search_by_hand(const Service& service, const std::vector<TokenId>& prompt,
                                    std::size_t width, std::size_t steps) {
  std::vector<Written> beams(1);
  for (std::size_t step = 0; step < steps; ++step) {
    std::multimap<double, Written, std::greater<>> longer;
    for (const Written& beam : beams) {
      std::vector<TokenId> ids = prompt;
      ids.insert(ids.end(), beam.tokens.begin(), beam.tokens.end());
      const Json request = {{"prompt", ids},      {"max_tokens", 1},
                            {"temperature", 0},   {"logprobs", 2 * width},
                            {"ignore_eos", true}, {"return_tokens_as_token_ids", true}};
      const Json answer = service.ask(post(kCompletions, request.dump())).json();
      for (const auto& [name, logprob] :
           answer["choices"][0]["logprobs"]["top_logprobs"][0].items()) {
        Written next = beam;
        next.tokens.push_back(static_cast<TokenId>(std::stoul(name.substr(9))));
        next.logprob += logprob.get<double>();
        longer.emplace(next.logprob, next);
      }
    }
    beams.clear();
    for (const auto& [logprob, next] : longer)
      if (beams.size() < width) beams.push_back(next);
  }
  return beams;
}

TEST_F(Beams, AreTheLikeliestAnswers) {
  const Json answer = ask(beams("In the beginning", 4, 12));
  ASSERT_EQ(answer["choices"].size(), 4u) << answer;
  const auto wanted = search_by_hand(service_, answer["choices"][0]["prompt_token_ids"], 4, 12);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& choice = answer["choices"][i];
    EXPECT_EQ(choice["token_ids"], Json(wanted[i].tokens));
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 48);
  // Beams copy what their parents had of a block.
  EXPECT_GT(daemon_.stat()["forked_tokens"], 0);
  // One beam is what a greedy answer is.
  Json one = beams("In the beginning", 1, 12);
  const Json narrow = ask(one);
  one.erase("use_beam_search");
  EXPECT_EQ(narrow["choices"][0]["text"], ask(one)["choices"][0]["text"]);
}

TEST_F(Beams, TellTheirLogprobs) {
  Json request = beams("In the beginning", 3, 5);
  request["logprobs"] = 2;
  const Json choice = ask(request)["choices"][1];
  ASSERT_EQ(choice["logprobs"]["tokens"].size(), 5u) << choice;
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_LE(choice["logprobs"]["token_logprobs"][i], 0);
    EXPECT_THAT(choice["logprobs"]["top_logprobs"][i].size(), ::testing::AnyOf(2u, 3u));
  }
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "In the beginning"}}}},
                     {"max_tokens", 5},
                     {"use_beam_search", true},
                     {"n", 2}};
  const Json answer = service_.ask(post("/v1/chat/completions", chat.dump())).json();
  EXPECT_EQ(answer["choices"].size(), 2u) << answer;
}

/// The demo model's text does not end, so here frequent tokens end it.
TEST(BeamsThatEnd, TellTheirTokensWithoutTheEnd) {
  const TempDirectory model;
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"})
    std::filesystem::copy_file(std::filesystem::path(kDemoModel) / name, model.path() / name);
  const TokenId comma = 11, of = 268;
  std::ofstream(model.path() / "generation_config.json") << Json{{"eos_token_id", {comma, of}}};
  const Daemon daemon(
      {"--model", model.path().string(), "--engines", "2", "--kv-cache-memory-bytes", "32M"});
  const Service service(daemon.socket());
  Json request = beams("In the beginning", 4, 12);
  request["ignore_eos"] = false;
  const Json answer = service.ask(post(kCompletions, request.dump())).json();
  request["include_stop_str_in_output"] = true;
  const Json with_end = service.ask(post(kCompletions, request.dump())).json();
  std::size_t ended = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& choice = answer["choices"][i];
    EXPECT_EQ(with_end["choices"][i]["text"], choice["text"]);
    if (choice["finish_reason"] != "stop") continue;
    ++ended;
    EXPECT_THAT(choice["stop_reason"], ::testing::AnyOf(comma, of)) << choice;
    Json ids = choice["token_ids"];
    for (const Json& id : ids)
      EXPECT_THAT(id, ::testing::AllOf(::testing::Ne(comma), ::testing::Ne(of)));
    ids.push_back(choice["stop_reason"]);
    EXPECT_EQ(with_end["choices"][i]["token_ids"], ids);
  }
  EXPECT_GT(ended, 0u) << answer;
  // One beam ends at once, and goes on with what is the second likeliest.
  Json one = beams("In the beginning", 1, 12);
  one["ignore_eos"] = false;
  one["length_penalty"] = 5;
  const Json longest = service.ask(post(kCompletions, one.dump())).json()["choices"][0];
  EXPECT_EQ(longest["token_ids"].size(), 12u) << longest;
  one["use_beam_search"] = false;
  one.erase("length_penalty");
  const Json greedy = service.ask(post(kCompletions, one.dump())).json()["choices"][0];
  EXPECT_EQ(greedy["finish_reason"], "stop") << greedy;
}

/// Each step's requests go on in another engine.
TEST_F(Beams, AreTheSameWhenEnginesAreKilled) {
  const Json request = beams("And God said", 4, 200);
  const Json undisturbed = ask(request)["choices"];
  ASSERT_EQ(undisturbed.size(), 4u);
  HttpClient client = service_.connect();
  client.send(post(kCompletions, request.dump()));
  for (int kill = 0; kill < 2; ++kill) {
    const pid_t pid = daemon_.engine(0)["pid"];
    signal_process(pid, SIGKILL);
    ASSERT_TRUE(eventually([&] {
      const Json engine = daemon_.engine(0);
      return !engine.is_null() && engine["pid"] != pid;
    }));
  }
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->json()["choices"], undisturbed);
}

TEST_F(Beams, WhatIsNotHeededBesideThemIsRefusedByItsField) {
  for (const auto& [field, value] : std::map<std::string, Json>{{"stop", "a"},
                                                                {"stream", true},
                                                                {"best_of", 5},
                                                                {"presence_penalty", 1},
                                                                {"allowed_token_ids", {300}},
                                                                {"prompt_logprobs", 1}}) {
    Json request = beams("In the beginning", 2, 3);
    request[field] = value;
    const HttpReply refused = service_.ask(post(kCompletions, request.dump()));
    EXPECT_EQ(refused.status, 400) << field;
    EXPECT_EQ(refused.json()["error"]["param"], field);
  }
  const HttpReply wide = service_.ask(post(kCompletions, beams("a", 11, 3).dump()));
  EXPECT_EQ(wide.status, 400);
  EXPECT_THAT(wide.body, HasSubstr("a beam search has at most 10 beams"));
  Json penalty = beams("a", 2, 3);
  penalty["use_beam_search"] = false;
  penalty["length_penalty"] = 2;
  EXPECT_EQ(service_.ask(post(kCompletions, penalty.dump())).json()["error"]["param"],
            "length_penalty");
}

/// Of many answers those that are told are the likeliest.
TEST_F(Beams, TheBestOfManyAnswersAreTold) {
  Json request = {{"prompt", "In the beginning"},
                  {"max_tokens", 6},
                  {"temperature", 1.5},
                  {"seed", 11},
                  {"n", 8},
                  {"logprobs", 0}};
  const Json all = ask(request)["choices"];
  std::multimap<double, std::string, std::greater<>> ordered;
  for (const Json& choice : all) {
    double sum = 0;
    for (const Json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
    ordered.emplace(sum, choice["text"]);
  }
  request["n"] = 2;
  request["best_of"] = 8;
  const Json answer = ask(request);
  ASSERT_EQ(answer["choices"].size(), 2u) << answer;
  auto best = ordered.begin();
  for (int i = 0; i < 2; ++i, ++best) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], best->second);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 48) << "all that were generated";
  request["stream"] = true;
  EXPECT_EQ(ask(request)["error"]["param"], "best_of");
  request["stream"] = false;
  request["best_of"] = 1;
  EXPECT_EQ(ask(request)["error"]["param"], "best_of");
}

/// Some of the answers found what another one had computed; the best may be one of those.
TEST_F(Beams, OfANewPromptNothingWasCachedHoweverManyAnswersAreComputed) {
  for (std::size_t i = 0; i < 6; ++i) {
    const Json told = ask({{"prompt", passage(37 + i * 211, 300)},
                           {"best_of", 4},
                           {"max_tokens", 4},
                           {"temperature", 1},
                           {"seed", i},
                           {"ignore_eos", true}});
    EXPECT_EQ(told["usage"]["prompt_tokens_details"]["cached_tokens"], 0) << told;
    EXPECT_EQ(told["usage"]["completion_tokens"], 16) << told;
  }
}

/// n answers, the best of some, and beams, all at the same time. Text and tokens of each.
Json many_answers(
    const Service& service, const std::function<void()>& meanwhile = [] {}) {
  Json several = {{"prompt", passage(0, 400)}, {"n", 8},    {"max_tokens", 70},
                  {"temperature", 1},          {"seed", 5}, {"return_token_ids", true},
                  {"ignore_eos", true}};
  Json best = several;
  best["n"] = 2;
  best["best_of"] = 8;
  std::vector<HttpClient> clients;
  for (const Json& request : {several, best, beams(passage(0, 400), 4, 40)}) {
    clients.push_back(service.connect());
    clients.back().send(post(kCompletions, request.dump()));
  }
  meanwhile();
  Json all = Json::array();
  for (HttpClient& client : clients) {
    const auto answer = client.receive();
    EXPECT_TRUE(answer.has_value());
    const Json told = answer->json();
    for (const Json& choice : told["choices"]) all.push_back({choice["text"], choice["token_ids"]});
  }
  EXPECT_EQ(all.size(), 8u + 2 + 4) << all;
  return all;
}

TEST(ManyAnswers, AreTheSameWhenTheyArePreemptedSwappedAndTakenOver) {
  const Daemon large({"--engines", "2", "--kv-cache-memory-bytes", "32M"});
  const Service of_large(large.socket());
  const Json undisturbed = many_answers(of_large);
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{}, {"--swap-space", "8M", "--preemption-mode", "swap"}}) {
    std::vector<std::string> flags = {"--engines",       "1",  "--num-gpu-blocks-override", "40",
                                      "--max-model-len", "256"};
    flags.insert(flags.end(), mode.begin(), mode.end());
    const Daemon small(flags);
    EXPECT_EQ(many_answers(Service(small.socket())), undisturbed);
    EXPECT_GT(small.preemptions(), 0u);
    EXPECT_TRUE(small.fsck_is_clean());
  }
  const auto kill_one = [&] {
    ASSERT_TRUE(eventually([&] { return large.running(0) > 0; }));
    signal_process(large.pid_of(0), SIGKILL);
  };
  EXPECT_EQ(many_answers(of_large, kill_one), undisturbed);
  EXPECT_TRUE(large.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
