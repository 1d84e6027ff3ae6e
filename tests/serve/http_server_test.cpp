// The HTTP server beside a handler that fails.

#include "tools/serve/http/server.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tests/serve/http_client.hpp"

namespace kvhive::testing {
namespace {

// Streams of others run in the same process: an exception that nobody expects must not end it.
TEST(HttpServer, AnExceptionCostsOneRequest) {
  boost::asio::io_context loop(1);
  int gone = 0;
  Connections connections;
  connections.answer = [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone = [&] { ++gone; };
    if (exchange->request().path == "/well")
      return exchange->answer({200, "well", "text/plain", {}});
    if (exchange->request().path == "/begun") exchange->begin_events({});
    throw std::runtime_error("a mistake");
  };
  connections.refuse = [](Exchange& exchange, int status, const std::string& text) {
    exchange.answer({status, text, "text/plain", {}});
  };
  HttpServer server(loop, std::move(connections));
  ASSERT_TRUE(server.listen("127.0.0.1", 0));
  std::thread serving([&] { loop.run(); });

  HttpClient other(server.port()), failing(server.port()), begun(server.port());
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

  boost::asio::post(loop, [&] { server.stop(); });
  serving.join();
  EXPECT_EQ(gone, 2);
}

}  // namespace
}  // namespace kvhive::testing
