#include "tools/serve/http/session.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/json_file.hpp"
#include "base/log.hpp"

namespace kvhive {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [name](const auto& header) {
    return beast::iequals(beast::string_view(header.first.data(), header.first.size()),
                          beast::string_view(name.data(), name.size()));
  });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string_view HttpRequest::id() const {
  const std::string_view given = header("X-Request-Id");
  const auto is_decent = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
  };
  return given.size() <= 128 && std::ranges::all_of(given, is_decent) ? given : std::string_view();
}

namespace {

/// Read or written at a time. What stands between a body's chunks is no body, and no header: only
/// the buffer's size bounds it.
constexpr std::size_t kAtATime = std::size_t{64} << 10;
/// Is taken before anything is asked about it.
constexpr std::size_t kSmallBody = std::size_t{64} << 10;

std::string head_of(int status, const HttpHeaders& headers) {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " +
                     std::string(reason.data(), reason.size()) + "\r\n";
  for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
  return head + "\r\n";
}

/// Without its body.
HttpRequest plain(const http::request<http::string_body>& parsed) {
  HttpRequest request;
  request.method = std::string(parsed.method_string());
  std::string target(parsed.target());
  for (const auto& field : parsed)
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  // As proxies are asked: then the target's host counts.
  if (const std::size_t scheme = target.find("://");
      scheme != std::string::npos && target.front() != '/') {
    const std::size_t path = std::min(target.find('/', scheme + 3), target.size());
    for (auto& [name, value] : request.headers)
      if (beast::iequals(name, "host")) value = target.substr(scheme + 3, path - scheme - 3);
    target = path == target.size() ? "/" : target.substr(path);
  }
  const std::size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  return request;
}

bool is_loopback(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address.is_loopback();
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
}

std::string chunk_of(std::string_view bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string chunk = size;
  chunk.append(bytes).append("\r\n");
  return chunk;
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, HttpConnections& connections)
    : connections_(connections),
      stream_(std::move(socket)),
      buffer_(connections.limits.header_bytes + kAtATime) {
  boost::system::error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  stream_.socket().set_option(
      asio::socket_base::send_buffer_size(connections.limits.send_buffer_bytes), ignored);
  const auto peer = stream_.socket().remote_endpoint(ignored);
  is_from_this_machine_ = !ignored && is_loopback(peer.address());
  room_ = &connections_.reading;
  place_ = room_->insert(room_->end(), this);
}

Session::~Session() { close(); }

void Session::move_to(std::list<Session*>& room) {
  room.splice(room.end(), *room_, place_);
  room_ = &room;
}

void Session::reserve(std::size_t bytes) {
  connections_.reserved += bytes - reserved_;
  reserved_ = bytes;
}

void Session::start() { read_request(connections_.limits.for_header); }

void Session::close() {
  const State state = std::exchange(state_, State::closed);
  if (state == State::closed) return;
  if (state == State::answering) count(HttpCounts::kGone);
  room_->erase(place_);
  reserve(0);
  beast::error_code ignored;
  stream_.socket().close(ignored);
  const auto gone = std::exchange(on_gone, nullptr);
  forget_callbacks();
  if (gone) gone();
}

void Session::forget_callbacks() {
  on_gone = nullptr;
  on_room = nullptr;
  on_end_of_service = nullptr;
}

void Session::dismiss() {
  keeps_open_ = false;
  if (state_ == State::reading) return close();
  if (state_ != State::answering) return;
  if (const auto end = std::exchange(on_end_of_service, nullptr))
    end();
  else
    connections_.refuse(*this, 503, "the service is being stopped; ask again");
}

// -- reading --------------------------------------------------------------------------------------

void Session::read_request(std::chrono::seconds patience) {
  state_ = State::reading;
  is_counted_ = false;
  is_read_ = false;
  handler = "none";
  headers.clear();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(connections_.limits.header_bytes));
  parser_->body_limit(connections_.limits.body_bytes);
  stream_.expires_after(patience);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_header(error); });
}

void Session::on_header(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error) return refuse(error);
  move_to(connections_.reading);  // who sends something is not the one that has waited longest
  stream_.expires_after(connections_.limits.for_body);
  const auto& head = parser_->get();
  // What is encoded otherwise is not understood; to take it for the body would be wrong.
  if (!head[http::field::transfer_encoding].empty() &&
      !beast::iequals(head[http::field::transfer_encoding], "chunked"))
    return refuse(501,
                  "a body comes in chunks (Transfer-Encoding: chunked) or has a length; no "
                  "other transfer coding is known");
  if (const auto coding = head[http::field::content_encoding];
      !coding.empty() && !beast::iequals(coding, "identity"))
    return refuse(415, "the body has a Content-Encoding; send it as it is");
  const bool asks_first =
      head.version() >= 11 && beast::iequals(head[http::field::expect], "100-continue");
  const auto announced = parser_->content_length();  // none of a body in chunks
  const bool is_short = parser_->is_done() || (announced && *announced <= kSmallBody);
  if ((asks_first || !is_short) && is_answered_by_head()) return;
  if (!asks_first) return read_body();
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue),
                    [self = shared_from_this()](ErrorCode failed, std::size_t) {
                      if (failed) return self->close();
                      self->read_body();
                    });
}

bool Session::is_answered_by_head() {
  if (!connections_.answer_to_head) return false;
  request_ = plain(parser_->get());
  auto answered = connections_.answer_to_head(*this);
  if (!answered) return false;
  keeps_open_ = false;
  state_ = State::answering;
  move_to(connections_.answering);
  answer(std::move(*answered));
  return true;
}

void Session::read_body() {
  if (parser_->is_done()) return on_request({});
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_body(error); });
}

/// What has come counts, not what was announced: else who announces bodies and sends none keeps all
/// others out. A small body is taken in any case.
void Session::on_body(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error) return refuse(error);
  move_to(connections_.reading);
  reserve(parser_->get().body().size());
  if (reserved_ > kSmallBody && connections_.reserved > connections_.limits.all_body_bytes)
    return refuse(503, "too many large requests are being received; try again");
  read_body();
}

void Session::on_request(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error) return refuse(error);
  stream_.expires_never();
  keeps_open_ = parser_->get().keep_alive();
  is_chunked_ = parser_->get().version() >= 11;
  arrived = std::chrono::system_clock::now();
  request_ = plain(parser_->get());
  request_.body = std::move(parser_->get().body());
  is_read_ = true;
  state_ = State::answering;
  move_to(connections_.answering);
  watch_for_end();
  try {
    connections_.answer(shared_from_this());
  } catch (const std::exception& failure) {
    on_failure(failure);
  }
}

/// A mistake of ours: it costs the request that met it, and nobody else's.
void Session::on_failure(const std::exception& error) {
  spdlog::error("{} {} could not be answered: {}", printable(request_.method, 16),
                printable(request_.path, 80), printable(error.what(), 200));
  if (state_ != State::answering || is_counted_) return close();  // the answer has begun
  if (on_gone) std::exchange(on_gone, nullptr)();
  refuse(500, "the service could not handle this request; its log says why");
}

/// What is no request: the client is told if it can still be reached.
void Session::refuse(ErrorCode error) {
  const bool is_http =
      error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message)
    return close();
  if (error == http::error::body_limit)
    return refuse(413, "the request has more than " +
                           std::to_string(connections_.limits.body_bytes) +
                           " bytes; shorten it, or raise --max-body-bytes");
  const bool is_too_long =
      error == http::error::header_limit || error == http::error::buffer_overflow;
  refuse(is_too_long ? 431 : 400, "this is no HTTP request: " + error.message());
}

void Session::refuse(int status, const std::string& text) {
  keeps_open_ = false;
  state_ = State::answering;
  move_to(connections_.answering);
  connections_.refuse(*this, status, text);
}

/// A client that closes its end, or half of it, wants no answer any more. If its next request is
/// here already, that it has closed does not show by reading: then the connection's state is looked
/// at.
void Session::watch_for_end() {
  if (std::exchange(is_watching_, true)) return;
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read, [weak = weak_from_this()](ErrorCode error) {
        const auto self = weak.lock();
        if (!self) return;
        self->is_watching_ = false;
        if (error || self->state_ != State::answering) return;
        char byte;
        const auto got =
            recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0) return self->look_for_end();
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch_for_end();
        self->close();
      });
}

void Session::look_for_end() {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const int asked =
      getsockopt(stream_.socket().native_handle(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  if (asked != 0 || info.tcpi_state != TCP_ESTABLISHED) return close();
  is_watching_ = true;
  look_again_.expires_after(connections_.limits.between_looks);
  look_again_.async_wait([weak = weak_from_this()](ErrorCode) {
    const auto self = weak.lock();
    if (!self) return;
    self->is_watching_ = false;
    if (self->state_ == State::answering) self->look_for_end();
  });
}

// -- answering ------------------------------------------------------------------------------------

void Session::answer(HttpAnswer answer) {
  if (state_ != State::answering) return;
  // An answer that is not read stays here for a while.
  if (answer.body.size() > kAtATime) {
    if (connections_.reserved + answer.body.size() > connections_.limits.all_body_bytes)
      return refuse(503, "too many long answers are not read; try again");
    reserve(reserved_ + answer.body.size());
  }
  count(answer.status);
  forget_callbacks();
  HttpHeaders all = std::move(answer.headers);
  all.insert(all.end(), headers.begin(), headers.end());
  if (const auto id = request_.id(); answer.status >= 400 && !id.empty())
    all.emplace_back("X-Request-Id", id);
  if (!answer.content_type.empty()) all.emplace_back("Content-Type", answer.content_type);
  all.emplace_back("Content-Length", std::to_string(answer.body.size()));
  keeps_open_ &= !connections_.is_ending;
  all.emplace_back("Connection", keeps_open_ ? "keep-alive" : "close");
  state_ = State::ended;
  send(head_of(answer.status, all) + (request_.method == "HEAD" ? "" : answer.body));
}

void Session::begin_events(HttpHeaders more) {
  if (state_ != State::answering) return;
  count(200);
  HttpHeaders all = headers;
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {{"Content-Type", "text/event-stream; charset=utf-8"},
                         {"Cache-Control", "no-cache"},
                         {"X-Accel-Buffering", "no"}});  // nginx would keep them back
  if (!is_chunked_ || connections_.is_ending) keeps_open_ = false;
  if (is_chunked_) all.emplace_back("Transfer-Encoding", "chunked");
  all.emplace_back("Connection", keeps_open_ ? "keep-alive" : "close");
  send(head_of(200, all));
}

void Session::send_event(std::string_view data) {
  if (state_ != State::answering) return;
  std::string event = "data: ";
  event.append(data).append("\n\n");
  send(is_chunked_ ? chunk_of(event) : event);
}

void Session::keep_alive() {
  if (state_ != State::answering) return;
  static constexpr std::string_view kComment = ": keep-alive\n\n";
  send(is_chunked_ ? chunk_of(kComment) : std::string(kComment));
}

void Session::end() {
  if (state_ != State::answering) return;
  forget_callbacks();
  state_ = State::ended;
  send(is_chunked_ ? "0\r\n\r\n" : "");
}

/// Once, with the status that the client was sent first.
void Session::count(int status) {
  if (!std::exchange(is_counted_, true)) connections_.counts.add(handler, request_.method, status);
}

bool Session::is_full() const { return unread() > connections_.limits.unread_bytes; }

/// Long events of streams that are not read count with the bodies.
void Session::send(std::string bytes) {
  if (state_ == State::answering && bytes.size() > kAtATime) {
    if (connections_.reserved + bytes.size() > connections_.limits.all_body_bytes) return close();
    reserve(reserved_ + bytes.size());
  }
  pending_ += bytes;
  if (writing_.empty()) write_pending();
}

void Session::write_pending() {
  writing_ = std::exchange(pending_, {});
  written_ = 0;
  write_some();
}

/// Who reads a long answer slowly has time for each piece of it.
void Session::write_some() {
  stream_.expires_after(connections_.limits.for_writing);
  const std::string_view piece = std::string_view(writing_).substr(written_, kAtATime);
  written_ += piece.size();
  asio::async_write(
      stream_, asio::buffer(piece),
      [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_written(error); });
}

void Session::on_written(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error) return close();
  if (state_ == State::answering && unread() <= connections_.limits.unread_bytes / 2) {
    reserve(request_.body.size());
    if (const auto has_room = std::exchange(on_room, nullptr)) has_room();
    if (state_ == State::closed) return;
  }
  if (written_ < writing_.size()) return write_some();
  writing_.clear();
  written_ = 0;
  if (!pending_.empty()) return write_pending();
  stream_.expires_never();
  if (state_ != State::ended) return;
  if (!is_read_ && !connections_.is_ending) return hear_out();
  if (!keeps_open_ || connections_.is_ending) return close();
  request_ = {};
  reserve(0);
  move_to(connections_.reading);
  read_request(connections_.limits.for_next_request);
}

/// Waits until the client has stopped sending. Its place is the first that another gets.
void Session::hear_out() {
  ErrorCode ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  connections_.reading.splice(connections_.reading.begin(), *room_, place_);
  room_ = &connections_.reading;
  reserve(0);
  parser_.reset();
  buffer_.clear();
  unheard_ = connections_.limits.body_bytes;
  stream_.expires_after(connections_.limits.for_rest);
  hear_more();
}

void Session::hear_more() {
  stream_.async_read_some(buffer_.prepare(kAtATime),
                          [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
                            if (self->state_ == State::closed) return;
                            if (error || bytes > self->unheard_) return self->close();
                            self->unheard_ -= bytes;
                            self->hear_more();
                          });
}

}  // namespace kvhive
