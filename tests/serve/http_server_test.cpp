// The HTTP server beside a handler of the test's, and clients that no good program is.

#include "tools/serve/http/server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "tests/serve/http_client.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

/// A server in a thread of its own. What is asked for decides what its handler does.
class HttpServerTest : public ::testing::Test {
 protected:
  void serve(const HttpLimits& limits = {}) {
    HttpConnections connections;
    connections.limits = limits;
    connections.answer = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
    connections.answer_to_head = [](Exchange& exchange) -> std::optional<HttpAnswer> {
      if (exchange.request().path != "/closed") return std::nullopt;
      return HttpAnswer{403, "closed", "text/plain", {}};
    };
    connections.refuse = [](Exchange& exchange, int status, const std::string& text) {
      exchange.answer({status, text, "text/plain", {}});
    };
    server_.emplace(loop_, std::move(connections));
    ASSERT_TRUE(server_->listen("127.0.0.1", 0));
    serving_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    boost::asio::post(loop_, [this] { server_->stop(); });
    serving_.join();
  }
  HttpClient connect() const { return HttpClient(server_->port()); }
  std::optional<HttpReply> ask(const std::string& request) const {
    HttpClient client = connect();
    client.send(request);
    return client.receive();
  }

  static constexpr std::size_t kLong = std::size_t{3} << 20;

  static constexpr int kEvents = 4'000;
  static constexpr std::size_t kEventBytes = 10'000;

  int gone_ = 0;
  std::promise<void> one_is_gone_;
  int times_full_ = 0;
  std::promise<int> events_when_full_;

 private:
  void handle(const std::shared_ptr<Exchange>& exchange) {
    const std::string& path = exchange->request().path;
    exchange->on_gone = [this] {
      if (gone_++ == 0) one_is_gone_.set_value();
    };
    if (path == "/well") return exchange->answer({200, "well", "text/plain", {}});
    if (path == "/long") return exchange->answer({200, std::string(kLong, 'a'), "text/plain", {}});
    if (path == "/never") return waiting_.push_back(exchange);
    if (path == "/begun" || path == "/stream" || path == "/large") exchange->begin_events({});
    if (path == "/stream") return go_on(exchange, kEvents);
    if (path == "/large") return exchange->send_event(std::string(kLong, 'a')), exchange->end();
    throw std::runtime_error("a mistake");
  }

  void go_on(const std::shared_ptr<Exchange>& exchange, int events) {
    exchange->send_event(std::string(kEventBytes, 'a'));
    if (exchange->is_gone()) return;
    if (events == 1) {
      if (times_full_ == 0) events_when_full_.set_value(kEvents);
      return exchange->end();
    }
    const auto next = [=, this] { go_on(exchange, events - 1); };
    if (!exchange->is_full()) return boost::asio::post(loop_, next);
    if (times_full_++ == 0) events_when_full_.set_value(kEvents - events);
    exchange->on_room = next;
  }

  boost::asio::io_context loop_{1};
  std::vector<std::shared_ptr<Exchange>> waiting_;
  std::optional<HttpServer> server_;
  std::thread serving_;
};

// Streams of others run in the same process: an exception that nobody expects must not end it.
TEST_F(HttpServerTest, AnExceptionCostsOneRequest) {
  serve();
  HttpClient other = connect(), failing = connect(), begun = connect();
  failing.send(get("/fails"));
  const auto refused = failing.receive();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 500);
  EXPECT_TRUE(failing.is_ended());
  begun.send(get("/begun"));
  EXPECT_TRUE(begun.is_ended());
  other.send(get("/well"));
  const auto well = other.receive();
  ASSERT_TRUE(well);
  EXPECT_EQ(well->body, "well");
  EXPECT_EQ(gone_, 2);
}

/// What stands between chunks, or behind them, is no body and has no length.
TEST_F(HttpServerTest, ExtensionsAndTrailersWithoutEndAreRefused) {
  serve();
  const std::string head = "POST /well HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += "a: b\r\n";
  for (const std::string& endless : {"5;x=" + std::string(120'000, 'y'),
                                     "0\r\na: " + std::string(120'000, 'y'), "0\r\n" + lines}) {
    const auto refused = ask(head + endless);
    ASSERT_TRUE(refused.has_value()) << endless.substr(0, 10);
    EXPECT_EQ(refused->status, 431) << endless.substr(0, 10);
  }
  EXPECT_EQ(ask(head + "2;x=y\r\nab\r\n0\r\na: b\r\n\r\n")->body, "well");
}

/// Else its request goes on for nobody.
TEST_F(HttpServerTest, AClientThatLeavesWithBytesBehindItsRequestIsNoticed) {
  serve({.between_looks = std::chrono::milliseconds(5)});
  HttpClient client = connect();
  client.send(get("/never") + "G");
  EXPECT_EQ(ask(get("/well"))->body, "well");
  EXPECT_EQ(one_is_gone_.get_future().wait_for(std::chrono::milliseconds(30)),
            std::future_status::timeout)
      << "it is still there";
  one_is_gone_ = {};
  client.close();
  EXPECT_EQ(one_is_gone_.get_future().wait_for(std::chrono::seconds(60)),
            std::future_status::ready);
}

TEST_F(HttpServerTest, AnswersThatNobodyReadsTakeSoMuchMemoryAndNoMore) {
  serve({.all_body_bytes = 2 * kLong + 1});
  std::vector<HttpClient> mute;
  for (int i = 0; i < 2; ++i) {
    mute.push_back(connect());
    mute.back().send(get("/long"));
    ASSERT_TRUE(mute.back().receive_until("aaaa"));
  }
  const auto refused = ask(get("/long"));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 503);
  EXPECT_THAT(refused->body, HasSubstr("are not read"));
  EXPECT_EQ(ask(get("/well"))->body, "well") << "short ones are";
  for (HttpClient& client : mute) EXPECT_EQ(client.receive()->body.size(), kLong);
  EXPECT_EQ(ask(get("/long"))->status, 200);
}

/// Else its connection would be reset, and the answer lost: it reads only when it has sent.
TEST_F(HttpServerTest, WhoSendsALongBodyInVainReadsWhy) {
  serve();
  for (const auto& [path, status] : {std::pair("/closed", 403), {"/well", 413}}) {
    HttpClient client = connect();
    const std::size_t bytes = (std::size_t{8} << 20) + (status == 413 ? 1 : 0);
    client.send("POST " + std::string(path) +
                " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n");
    EXPECT_TRUE(client.send(std::string(kLong, 'a')));
    const auto refused = client.receive();
    ASSERT_TRUE(refused.has_value()) << path;
    EXPECT_EQ(refused->status, status);
    EXPECT_TRUE(client.is_ended());
  }
}

/// Those of requests that are being answered count, too.
TEST_F(HttpServerTest, BodiesTakeSoMuchMemoryAndNoMore) {
  serve({.all_body_bytes = kLong});
  const std::string body(kLong - 100, 'a');
  HttpClient first = connect();
  first.send(post("/never", body));
  std::optional<HttpReply> refused;
  EXPECT_TRUE(eventually([&] {
    refused = ask(post("/well", body));
    return refused && refused->status == 503;
  }));
  EXPECT_THAT(refused->body, HasSubstr("too many large requests"));
  EXPECT_EQ(ask(post("/well", "short"))->body, "well");
  first.close();
  EXPECT_TRUE(eventually([&] { return ask(post("/well", body))->status == 200; }));
}

/// The kernel takes some of it first.
TEST_F(HttpServerTest, AStreamThatIsNotReadWaitsAndEndsAfterAWhile) {
  serve({.unread_bytes = 100'000, .for_writing = std::chrono::seconds(1)});
  HttpClient client = connect();
  client.send(get("/stream"));
  EXPECT_EQ(one_is_gone_.get_future().wait_for(std::chrono::seconds(60)),
            std::future_status::ready);
  EXPECT_EQ(times_full_, 1);
}

TEST_F(HttpServerTest, AStreamThatIsReadLateComesWhole) {
  serve({.unread_bytes = 100'000});
  HttpClient client = connect();
  client.send(get("/stream"));
  const int events = events_when_full_.get_future().get();
  EXPECT_LT(events, kEvents / 2) << "what it would take without a limit";
  const auto reply = client.receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->events().size(), std::size_t{kEvents});
  EXPECT_EQ(reply->body.size(), kEvents * (kEventBytes + std::string_view("data: \n\n").size()));
  EXPECT_GT(times_full_, 1);
  EXPECT_EQ(gone_, 0);
}

/// They are whole before anybody can be asked to wait.
TEST_F(HttpServerTest, LongEventsThatNobodyReadsTakeSoMuchMemoryAndNoMore) {
  serve({.all_body_bytes = 2 * kLong + 1'000});
  std::vector<HttpClient> mute;
  for (int i = 0; i < 2; ++i) {
    mute.push_back(connect());
    mute.back().send(get("/large"));
    ASSERT_TRUE(mute.back().receive_until("aaaa"));
  }
  EXPECT_FALSE(ask(get("/large")).has_value());
  EXPECT_EQ(ask(get("/well"))->body, "well");
  for (HttpClient& client : mute) EXPECT_EQ(client.receive()->events().size(), 1u);
  EXPECT_EQ(ask(get("/large"))->events().size(), 1u);
}

/// Its answer's room is another's then.
TEST_F(HttpServerTest, WhoStopsReadingAWholeAnswerLosesItsConnection) {
  serve({.all_body_bytes = kLong + 1, .for_writing = std::chrono::seconds(1)});
  HttpClient mute = connect();
  mute.send(get("/long"));
  ASSERT_TRUE(mute.receive_until("aaaa"));
  EXPECT_EQ(ask(get("/long"))->status, 503);
  EXPECT_TRUE(eventually([&] { return ask(get("/long"))->status == 200; }));
  EXPECT_FALSE(mute.receive().has_value());
}

TEST_F(HttpServerTest, WhoSendsSomethingIsNotTheOneThatHasWaitedLongest) {
  serve({.connections = 4});
  // Answered, so that it is known to be there; then it waits for its next request.
  const auto answered = [&](HttpClient client) {
    client.send(get("/well"));
    EXPECT_TRUE(client.receive().has_value());
    return client;
  };
  HttpClient sending = connect(), other = answered(connect());
  sending.send("POST /well HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na");
  std::vector<HttpClient> waiting;
  for (const char* byte : {"b", "c"}) {
    other = answered(std::move(other));
    for (int i = 0; i < 2; ++i) waiting.push_back(answered(connect()));
    sending.send(byte);
  }
  other = answered(std::move(other));
  sending.send("d");
  const auto answer = sending.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->body, "well");
}

}  // namespace
}  // namespace kvhive::testing
