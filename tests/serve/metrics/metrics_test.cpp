// /metrics of a real kvhive serve, beside a real daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/serve/metrics/exposition_parser.hpp"
#include "tests/serve/served.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

MetricsText scrape(const Service& service, const std::string& query = "?view=host") {
  const HttpReply reply = service.ask(get("/metrics" + query));
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  return MetricsText(reply.body);
}

bool shows(const Service& service, const std::string& name, double value) {
  return eventually([&] { return scrape(service).sum(name) == value; }, kHang);
}

Json measured_completion(std::uint32_t max_tokens) {
  return {{"prompt", "In the beginning"},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true}};
}

std::string epoch_in(const MetricsText& text) {
  const auto& samples = text.families().at("kvhive_pool_info").samples;
  return samples.empty() ? "" : samples.front().labels.at("epoch");
}

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() { EXPECT_TRUE(shows(service_, "kvhive_up", 1)); }

  const Daemon daemon_;
  const Service service_{daemon_.socket()};
};

TEST_F(MetricsTest, WhatWasServedIsCountedExactly) {
  const std::vector<std::uint32_t> lengths = {1, 2, 3, 20, 40};
  double prompt_tokens = 0, cached = 0, tokens = 0;
  const auto add = [&](const Json& usage) {
    prompt_tokens += usage["prompt_tokens"].get<double>();
    tokens += usage["completion_tokens"].get<double>();
    const Json& details = usage["prompt_tokens_details"];
    if (details.is_object()) cached += details["cached_tokens"].get<double>();
  };
  std::string whole;
  for (const std::uint32_t length : lengths) {
    Json request = measured_completion(length);
    request["prompt"] = passage();  // so that the later ones hit
    const Json answer = service_.ask(post(kCompletions, request.dump())).json();
    add(answer["usage"]);
    whole = answer["choices"][0]["text"];
  }
  Json stopped = measured_completion(40);
  stopped["prompt"] = passage();
  stopped["stop"] = whole.substr(whole.size() / 2, 7);
  add(service_.ask(post(kCompletions, stopped.dump())).json()["usage"]);
  Json scored = measured_completion(3);
  scored["prompt"] = passage();
  scored["prompt_logprobs"] = 0;
  const Json scored_usage = service_.ask(post(kCompletions, scored.dump())).json()["usage"];
  add(scored_usage);
  const Json refused = {{"prompt", {99999}}, {"max_tokens", 2}};
  EXPECT_EQ(service_.ask(post(kCompletions, refused.dump())).status, 400);

  const MetricsText host = scrape(service_);
  const auto served = static_cast<double>(lengths.size() + 2);
  const auto ended = [&](const char* reason) {
    return host.sum("vllm:request_success_total", {{"finished_reason", reason}});
  };
  EXPECT_EQ(ended("length"), served - 1);
  EXPECT_EQ(ended("stop"), 1);
  EXPECT_EQ(ended("error"), 1);
  EXPECT_EQ(ended("abort"), 0);
  for (const std::string name :
       {"time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds",
        "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens",
        "request_num_preemptions"})
    EXPECT_EQ(host.sum("vllm:" + name + "_count"), served) << name;
  EXPECT_EQ(host.sum("vllm:inter_token_latency_seconds_count"), tokens - served);
  EXPECT_EQ(host.sum("vllm:generation_tokens_total"), tokens);
  EXPECT_EQ(host.sum("vllm:request_generation_tokens_sum"), tokens);
  EXPECT_EQ(host.sum("vllm:prompt_tokens_total"), prompt_tokens);
  EXPECT_EQ(host.sum("vllm:request_prompt_tokens_sum"), prompt_tokens);
  EXPECT_GT(cached, 0);
  EXPECT_EQ(host.sum("vllm:prefix_cache_hits_total"), cached);
  EXPECT_EQ(host.sum("vllm:prefix_cache_queries_total"),
            prompt_tokens - scored_usage["prompt_tokens"].get<double>());
  EXPECT_EQ(host.sum("vllm:iteration_tokens_total_sum"),
            prompt_tokens - cached + tokens - served + host.sum("kvhive_ended_rows_total"));
  const double e2e = host.sum("vllm:e2e_request_latency_seconds_sum");
  EXPECT_NEAR(e2e,
              host.sum("vllm:request_queue_time_seconds_sum") +
                  host.sum("vllm:request_inference_time_seconds_sum"),
              1e-6);
  EXPECT_GT(e2e, host.sum("vllm:time_to_first_token_seconds_sum"));
  EXPECT_EQ(host.sum("http_requests_total",
                     {{"handler", kCompletions}, {"method", "POST"}, {"status", "2xx"}}),
            served);
  EXPECT_EQ(host.sum("http_requests_total", {{"handler", kCompletions}, {"status", "4xx"}}), 1);

  // The sum over the engines is the host's; and whoever else serves this daemon shows the same.
  const MetricsText engines = scrape(service_, "");
  EXPECT_EQ(engines.count("vllm:num_requests_running"), 2u);
  EXPECT_EQ(engines.sum("vllm:generation_tokens_total"), tokens);
  EXPECT_EQ(engines.sum("vllm:e2e_request_latency_seconds_count"), served);
  const Service second(daemon_.socket());
  ASSERT_TRUE(shows(second, "kvhive_up", 1));
  EXPECT_EQ(scrape(second).sum("vllm:generation_tokens_total"), tokens);
  EXPECT_EQ(scrape(second, "?view=service").sum("http_requests_total", {{"method", "POST"}}), 0);
}

/// Requests of the channel's other users count the same.
TEST_F(MetricsTest, ClientsOfTheLibraryAreCountedToo) {
  ASSERT_TRUE(daemon_.connect().generate(request_of("In the beginning", 12)));
  const MetricsText host = scrape(service_);
  EXPECT_EQ(host.sum("vllm:request_success_total", {{"finished_reason", "length"}}), 1);
  EXPECT_EQ(host.sum("vllm:generation_tokens_total"), 12);
  EXPECT_EQ(host.sum("vllm:time_to_first_token_seconds_count"), 1);
}

TEST_F(MetricsTest, ARequestWhoseClientGoesIsAnAbort) {
  HttpClient client = service_.connect();
  Json request = measured_completion(3000);
  request["stream"] = true;
  client.send(post(kCompletions, request.dump()));
  ASSERT_TRUE(client.receive_until("data: "));
  EXPECT_TRUE(shows(service_, "vllm:num_requests_running", 1));
  EXPECT_EQ(scrape(service_).sum("kvhive_serve_requests_running"), 1);
  client.close();
  EXPECT_TRUE(eventually(
      [&] {
        return scrape(service_).sum("vllm:request_success_total", {{"finished_reason", "abort"}}) ==
               1;
      },
      kHang));
  EXPECT_TRUE(shows(service_, "vllm:num_requests_running", 0));
}

/// No sum falls, and a request that another engine finishes has ended once.
TEST_F(MetricsTest, SumsNeverFallWhenAnEngineIsKilled) {
  constexpr int kStreams = 8;
  Json request = measured_completion(1500);
  request["stream"] = true;
  std::vector<HttpClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(service_.connect());
    clients.back().send(post(kCompletions, request.dump()));
  }
  for (HttpClient& client : clients) ASSERT_TRUE(client.receive_until("data: "));
  std::map<std::string, double> before;
  const auto compare = [&] {
    const auto now = scrape(service_).growing();
    for (const auto& [series, value] : before) {
      ASSERT_TRUE(now.contains(series)) << series;
      EXPECT_GE(now.at(series), value) << series;
    }
    before = now;
  };
  compare();
  signal_process(daemon_.engine(0)["pid"], SIGKILL);
  for (HttpClient& client : clients) {
    compare();
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->events().back(), "[DONE]");
  }
  compare();
  const MetricsText host = scrape(service_);
  EXPECT_EQ(host.sum("vllm:request_success_total", {{"finished_reason", "length"}}), kStreams);
  for (const std::string name :
       {"time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"})
    EXPECT_EQ(host.sum("vllm:" + name + "_count"), kStreams) << name;
  EXPECT_EQ(host.sum("vllm:request_generation_tokens_sum"), kStreams * 1500);
  EXPECT_TRUE(eventually(
      [&] {
        return scrape(service_, "").sum("kvhive_engine_restarts_total", {{"engine", "0"}}) == 1;
      },
      kHang));
}

/// By who had computed them: the engine itself, the other one, or a dead one.
TEST_F(MetricsTest, FoundTokensAreToldByTheirOrigin) {
  const GenerateRequest request = request_of(passage(0, 1'000), 4);
  const auto found = [&](const char* origin) {
    return scrape(service_).sum("kvhive_hit_tokens_" + std::string(origin) + "_total");
  };
  const auto ask = [&](std::uint32_t engine) {
    return (*daemon_.connect(engine).generate(request)).cached_tokens;
  };
  EXPECT_EQ(ask(0), 0u);
  const double own = ask(0);
  EXPECT_GT(own, 64);
  EXPECT_EQ(found("own"), own);
  EXPECT_EQ(found("sibling"), 0);
  const double sibling = ask(1);
  EXPECT_EQ(found("own"), own);
  EXPECT_EQ(found("sibling"), sibling);
  EXPECT_EQ(found("host"), 0);
  const pid_t killed = daemon_.engine(0)["pid"];
  signal_process(killed, SIGKILL);
  ASSERT_TRUE(eventually(
      [&] {
        const Json next = daemon_.engine(0);
        return !next.is_null() && next["pid"] != killed;
      },
      kHang));
  EXPECT_EQ(ask(0), sibling) << "an engine's next process is another one";
  EXPECT_EQ(found("own"), own);
  EXPECT_EQ(found("sibling"), 2 * sibling);
  EXPECT_EQ(scrape(service_).sum("vllm:prefix_cache_hits_total"), own + 2 * sibling);
  EXPECT_EQ(scrape(service_).sum("kvhive_failover_recomputed_tokens_total"), 0);
}

/// What stood in no full block: full blocks are found. Prompts differ in length, so that not all
/// end at a block's end.
TEST_F(MetricsTest, WhatIsComputedAgainAfterADeathIsCounted) {
  Client client = daemon_.connect(0);
  const pid_t victim = daemon_.pid_of(0);
  std::set<RequestId> silent, open;
  for (std::size_t i = 0; i < 4; ++i) {
    GenerateRequest request = request_of("", 1'500);
    request.prompt_tokens.assign(100 + i, static_cast<TokenId>(300 + i));
    open.insert(*client.submit(request));
  }
  silent = open;
  bool is_killed = false;
  while (!open.empty()) {
    ASSERT_TRUE(client.wait().has_value());
    std::erase_if(open, [&](RequestId request) {
      const Progress news = *client.read(request);
      if (!news.tokens.empty()) silent.erase(request);
      EXPECT_NE(news.reason, Finish::error) << news.error.text;
      return news.reason != Finish::none;
    });
    if (silent.empty() && !std::exchange(is_killed, true)) signal_process(victim, SIGKILL);
  }
  const double again = scrape(service_).sum("kvhive_failover_recomputed_tokens_total");
  EXPECT_GE(again, 1);
  EXPECT_LE(again, 4 * 16);
}

TEST_F(MetricsTest, AStoppedKeeperKeepsNobodyWaiting) {
  service_.ask(post(kCompletions, measured_completion(5).dump()));  // opens a channel
  ASSERT_TRUE(shows(service_, "kvhive_keeper_up", 1));
  const pid_t keeper = daemon_.keeper();
  signal_process(keeper, SIGSTOP);
  service_.ask(post(kCompletions, measured_completion(5).dump()));
  const MetricsText stopped = scrape(service_);
  EXPECT_EQ(stopped.sum("kvhive_up"), 1);
  EXPECT_EQ(stopped.sum("vllm:generation_tokens_total"), 10);
  EXPECT_TRUE(shows(service_, "kvhive_keeper_up", 0));
  EXPECT_EQ(scrape(service_).sum("kvhive_up"), 1);
  signal_process(keeper, SIGCONT);
  EXPECT_TRUE(shows(service_, "kvhive_keeper_up", 1));
}

TEST_F(MetricsTest, ViewsThatThereAreNotAreRefused) {
  const HttpReply refused = service_.ask(get("/metrics?a=b&view=all"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("view: there is no 'all'; give engines, host or service"));
  EXPECT_EQ(service_.ask(post("/metrics", "{}")).status, 405);
  EXPECT_EQ(scrape(service_, "?a=b&view=engines").count("vllm:num_requests_running"), 2u);
}

/// Wrong methods and paths are no kinds of their own, so nobody fills the page.
TEST_F(MetricsTest, WhatClientsInventMakesNoSeries) {
  service_.ask("BREW /tea HTTP/1.1\r\nHost: localhost\r\n\r\n");
  service_.ask(get("/nowhere"));
  const MetricsText text = scrape(service_, "?view=service");
  EXPECT_EQ(text.sum("http_requests_total",
                     {{"handler", "none"}, {"method", "other"}, {"status", "4xx"}}),
            1);
  EXPECT_EQ(text.sum("http_requests_total", {{"handler", "none"}, {"method", "GET"}}), 1);
}

TEST(MetricsOfADaemon, TheNextDaemonsPoolIsReadInstead) {
  Daemon first;
  const std::string socket = first.socket();
  const Service service(socket);
  ASSERT_TRUE(shows(service, "kvhive_up", 1));
  service.ask(post(kCompletions, measured_completion(5).dump()));
  const std::string epoch = epoch_in(scrape(service));
  EXPECT_FALSE(epoch.empty());
  const Json status = first.status();
  first.kill();
  // A daemon is only gone when its last process is: until then no other gets the socket.
  for (const Json& process : {status["engines"][0], status["engines"][1], status["steward"]})
    EXPECT_TRUE(eventually([&] { return !is_alive(process["pid"]); }, std::chrono::seconds(60)));
  EXPECT_TRUE(shows(service, "kvhive_up", 0));
  EXPECT_FALSE(scrape(service).has("vllm:generation_tokens_total"));
  const pid_t next =
      spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket, "--threads", "1",
                                 "--kv-cache-memory-bytes", "8M", "--log-level", "error"});
  EXPECT_TRUE(shows(service, "kvhive_up", 1));
  const MetricsText text = scrape(service);
  EXPECT_NE(epoch_in(text), epoch);
  EXPECT_EQ(text.sum("vllm:generation_tokens_total"), 0);
  kill_daemon(next);
}

/// As with vLLM: keys guard what is below /v1.
TEST(MetricsOfADaemon, ItMayBeScrapedWithoutAKeyAndWithOldNames) {
  const Daemon daemon;
  const std::string keys = daemon.directory() + "/keys";
  std::ofstream(keys) << "secret\n";
  const Service service(daemon.socket(), {"--api-key-file", keys, "--metrics-old-names"});
  ASSERT_TRUE(shows(service, "kvhive_up", 1));
  EXPECT_TRUE(scrape(service).has("vllm:gpu_cache_usage_perc"));
}

}  // namespace
}  // namespace kvhive::testing
