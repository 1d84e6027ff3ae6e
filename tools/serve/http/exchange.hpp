#pragma once
// One HTTP request and the way to answer it: whole, or as a stream of server-sent events.

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvhive {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  ///< "POST"
  std::string path;    ///< without the query
  std::string query;   ///< behind the '?'
  std::string body;
  HttpHeaders headers;

  /// The first of that name, whatever its case; empty = there is none.
  std::string_view header(std::string_view name) const;
  /// What its caller calls it (X-Request-Id): letters, digits, "-_.", at most 128; empty = nothing.
  std::string_view id() const;
};

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

/// All calls are made in the server's thread. It is answered by answer(), or by begin_events(),
/// send_event() as often as needed, and end(). Calls after the client has gone have no effect.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  /// It came over this machine's own network (loopback).
  virtual bool is_from_this_machine() const = 0;
  /// Nobody waits for an answer any more.
  virtual bool is_gone() const = 0;
  virtual void answer(HttpAnswer answer) = 0;

  /// Sends the head of the answer.
  virtual void begin_events(HttpHeaders more) = 0;
  /// \param data  one line
  virtual void send_event(std::string_view data) = 0;
  /// A comment, so that nobody between takes the silence for an end.
  virtual void keep_alive() = 0;
  virtual void end() = 0;
  /// Much of the stream is not read yet: what comes next waits until on_room is called.
  virtual bool is_full() const = 0;

  /// When the request had come whole.
  std::chrono::system_clock::time_point arrived;
  /// Further headers of this request's answer, whoever gives it.
  HttpHeaders headers;
  /// Whose it is: the domain and the number of the key that it was asked with. Kept from the
  /// beginning, because keys may change while it is under way.
  std::string domain;
  std::size_t key_number = 0;  ///< 0 = none
  /// What answers it, for the statistics: one of a fixed set of names, which live for ever.
  std::string_view handler = "none";
  /// Called once when a stream that was full has room again.
  std::function<void()> on_room;
  /// Called once if the client goes, or does not read, before it was answered to the end.
  std::function<void()> on_gone;
  /// Called if the service ends before it was answered; it is answered then. Null = what has not
  /// been answered gets a plain refusal.
  std::function<void()> on_end_of_service;
};

}  // namespace kvhive
