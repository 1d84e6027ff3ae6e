#include "tools/serve/http/server.hpp"

#include <boost/asio/ip/address.hpp>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "tools/serve/http/session.hpp"

namespace kvhive {
namespace asio = boost::asio;
using asio::ip::tcp;

HttpServer::HttpServer(asio::io_context& loop, HttpConnections connections)
    : connections_(std::move(connections)), acceptor_(loop), pause_(loop) {}

HttpServer::~HttpServer() { stop(); }

Expected<void> HttpServer::listen(const std::string& host, std::uint16_t port) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error)
    return failure(Errc::bad_argument,
                   "--host '" + host + "' is no address; give one like 127.0.0.1, 0.0.0.0 or ::1");
  const tcp::endpoint endpoint(address, port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(4096, error);
  if (error)
    return failure(Errc::os_error, "cannot listen on " + host + " port " + std::to_string(port) +
                                       ": " + error.message() + "; choose another with --port");
  accept();
  return {};
}

std::uint16_t HttpServer::port() const { return acceptor_.local_endpoint().port(); }

void HttpServer::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    on_accept(error, std::move(socket));
  });
}

void HttpServer::on_accept(boost::system::error_code error, tcp::socket socket) {
  if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
  if (error) {
    // Most likely no descriptor is left. What waits for a request gives its own back.
    make_room();
    pause_.expires_after(std::chrono::milliseconds(10));
    pause_.async_wait([this](boost::system::error_code ended) {
      if (!ended) accept();
    });
    return;
  }
  accept();  // first: whatever becomes of this one, the next is taken
  if (connections_.count() >= connections_.limits.connections) make_room();
  if (connections_.count() < connections_.limits.connections)
    std::make_shared<Session>(std::move(socket), connections_)->start();
}

/// Those that are being answered keep their places.
void HttpServer::make_room() {
  if (!connections_.reading.empty()) connections_.reading.front()->close();
}

void HttpServer::take_no_more() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  connections_.is_ending = true;
  while (!connections_.reading.empty()) connections_.reading.front()->close();
}

void HttpServer::dismiss() {
  take_no_more();
  // Each may leave the list.
  const std::vector<Session*> all(connections_.answering.begin(), connections_.answering.end());
  for (Session* session : all) session->dismiss();
}

void HttpServer::stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (auto* const room : {&connections_.reading, &connections_.answering})
    while (!room->empty()) room->front()->close();
}

}  // namespace kvhive
