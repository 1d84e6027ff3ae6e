#pragma once
// A plain HTTP/1.1 client over a socket, which can also do what no good client does: send half a
// request, read nothing, leave in the middle.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvhive::testing {

struct HttpReply {
  int status = 0;
  std::string head, body;  ///< the body without its chunks' frames
  nlohmann::json json() const { return nlohmann::json::parse(body); }
  /// The data of its events.
  std::vector<std::string> events() const;
};

/// The text of a completion that was streamed: what its events' choices have.
std::string text_of(const std::vector<std::string>& events);

class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port);

  /// Whether all of it was taken: the server may have ended the connection.
  bool send(const std::string& bytes);
  /// One whole answer; nothing if the connection ended before, or nothing came for a minute.
  std::optional<HttpReply> receive();
  /// Reads until the answer so far contains `text`.
  bool receive_until(const std::string& text);
  /// Whether the server ends the connection, within a minute.
  bool is_ended();
  void close() { socket_ = UniqueFd(); }

 private:
  bool read_more();
  UniqueFd socket_;
  std::string received_;
};

std::string post(const std::string& path, const std::string& body, const std::string& headers = "");
std::string get(const std::string& path);

}  // namespace kvhive::testing
