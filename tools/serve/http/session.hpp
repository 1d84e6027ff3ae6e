#pragma once
// One connection: reads a request, has it answered, and reads the next.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "tools/serve/http/connections.hpp"

namespace kvhive {

class Session : public Exchange, public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, HttpConnections& connections);
  ~Session() override;

  void start();
  /// Closes the connection; whoever answers is told that the client has gone.
  void close();
  /// The service ends: answers the request, if there is one, and closes when the answer is sent.
  void dismiss();

  const HttpRequest& request() const override { return request_; }
  bool is_from_this_machine() const override { return is_from_this_machine_; }
  bool is_gone() const override { return state_ == State::closed; }
  void answer(HttpAnswer answer) override;
  void begin_events(HttpHeaders more) override;
  void send_event(std::string_view data) override;
  void keep_alive() override;
  void end() override;
  bool is_full() const override;

 private:
  enum class State : std::uint8_t { reading, answering, ended, closed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using ErrorCode = boost::beast::error_code;

  void read_request(std::chrono::seconds patience);
  void on_header(ErrorCode error);
  bool is_answered_by_head();
  void read_body();
  void on_body(ErrorCode error);
  void on_request(ErrorCode error);
  void on_failure(const std::exception& error);
  void refuse(ErrorCode error);
  void refuse(int status, const std::string& text);
  void watch_for_end();
  void look_for_end();
  void move_to(std::list<Session*>& room);
  void reserve(std::size_t bytes);
  void count(int status);
  std::size_t unread() const { return pending_.size() + writing_.size() - written_; }
  void forget_callbacks();
  void send(std::string bytes);
  void write_pending();
  void write_some();
  void on_written(ErrorCode error);
  void hear_out();
  void hear_more();

  HttpConnections& connections_;
  boost::beast::tcp_stream stream_;
  boost::asio::steady_timer look_again_{stream_.get_executor()};
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;
  State state_ = State::reading;
  bool is_from_this_machine_ = false;
  bool keeps_open_ = false;  ///< the client may send another request
  bool is_chunked_ =
      false;  ///< HTTP/1.0 knows no chunks: there the answer ends with the connection
  bool is_watching_ = false;
  bool is_read_ = false;                 ///< the request, to its end
  bool is_counted_ = false;              ///< the request
  std::string pending_, writing_;        ///< of the answer: not written yet, and being written
  std::size_t written_ = 0;              ///< of writing_
  std::size_t reserved_ = 0;             ///< of the bytes for bodies
  std::size_t unheard_ = 0;              ///< bytes of a refused request that may still come
  std::list<Session*>* room_;            ///< where it is now
  std::list<Session*>::iterator place_;  ///< in it
};

}  // namespace kvhive
