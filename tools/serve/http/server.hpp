#pragma once
// An HTTP/1.1 server in one thread. No connection costs a thread, and none that is slow, silent or
// half sent costs another its place: when there are as many as there may be, the one that has been
// waiting for its request the longest is closed for the next.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <string>

#include "base/expected.hpp"
#include "tools/serve/http/connections.hpp"

namespace kvhive {

class HttpServer {
 public:
  /// \param connections  limits, and what answers; nobody is connected yet
  HttpServer(boost::asio::io_context& loop, HttpConnections connections);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  /// \param host  a numeric address
  /// \param port  0 = any that is free
  [[nodiscard]] Expected<void> listen(const std::string& host, std::uint16_t port);
  std::uint16_t port() const;
  const HttpConnections& connections() const { return connections_; }
  /// Takes no more connections and closes those that have asked for nothing; the others end with
  /// their answers.
  void take_no_more();
  /// Answers all that is open with the service's end.
  void dismiss();
  /// Closes every connection and takes no more.
  void stop();

 private:
  void accept();
  void on_accept(boost::system::error_code error, boost::asio::ip::tcp::socket socket);
  void make_room();

  HttpConnections connections_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;  ///< after a connection that could not be taken
};

}  // namespace kvhive
