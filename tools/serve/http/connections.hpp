#pragma once
// What the connections of a server share.

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "tools/serve/http/exchange.hpp"
#include "tools/serve/http/http_counts.hpp"

namespace kvhive {

class Session;

struct HttpLimits {
  std::size_t connections = 8192;
  std::size_t header_bytes = 16384;
  std::size_t body_bytes = std::size_t{8} << 20;
  /// Of all bodies together that are being received or answered, and of whole answers and long
  /// events that are being sent.
  std::size_t all_body_bytes = std::size_t{256} << 20;
  /// Of a stream that its client does not read; then what comes next waits.
  std::size_t unread_bytes = 256 << 10;
  /// The kernel's room for an answer. By default a client that never reads costs 4 MiB of it.
  int send_buffer_bytes = 64 << 10;
  std::chrono::seconds for_header{10};
  std::chrono::seconds for_body{60};
  std::chrono::seconds for_next_request{60};
  std::chrono::seconds for_writing{30};  ///< each 64 KiB of an answer, or its rest
  /// Who was answered while it was sending is listened to for so long; else its connection is
  /// reset, and the answer is lost with it.
  std::chrono::seconds for_rest{2};
  /// Whether a client has closed its end that had sent more than its request.
  std::chrono::milliseconds between_looks{500};
};

struct HttpConnections {
  HttpLimits limits;
  std::function<void(std::shared_ptr<Exchange>)> answer;
  /// What is answered before a long body is received; nothing = the body is wanted. Null = all are.
  std::function<std::optional<HttpAnswer>(Exchange&)> answer_to_head;
  /// Answers what is no request, or too large a one.
  std::function<void(Exchange&, int status, const std::string& text)> refuse;

  std::list<Session*> reading;  ///< the one that waits longest first
  std::list<Session*> answering;
  std::size_t reserved = 0;  ///< bytes, for bodies
  bool is_ending = false;    ///< nobody may ask again
  HttpCounts counts;

  std::size_t count() const { return reading.size() + answering.size(); }
};

}  // namespace kvhive
