#include "tests/serve/http_client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <regex>

#include "base/check.hpp"

namespace kvhive::testing {

std::vector<std::string> HttpReply::events() const {
  static const std::string kData = "data: ";
  std::vector<std::string> events;
  for (std::size_t at = body.find(kData); at != std::string::npos; at = body.find(kData, at)) {
    at += kData.size();
    events.push_back(body.substr(at, body.find("\n\n", at) - at));
  }
  return events;
}

std::string text_of(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const auto json = nlohmann::json::parse(event);
    for (const auto& choice : json["choices"]) text += choice["text"];
  }
  return text;
}

HttpClient::HttpClient(std::uint16_t port)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  KV_CHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
           errno);
}

bool HttpClient::send(const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const auto got = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (got < 0) return false;  // its answer may still be there
    sent += static_cast<std::size_t>(got);
  }
  return true;
}

bool HttpClient::read_more() {
  pollfd ready{socket_.get(), POLLIN, 0};
  if (poll(&ready, 1, 60'000) != 1) return false;
  char piece[65536];
  const auto got = recv(socket_.get(), piece, sizeof piece, 0);
  if (got <= 0) return false;
  received_.append(piece, static_cast<std::size_t>(got));
  return true;
}

bool HttpClient::receive_until(const std::string& text) {
  while (received_.find(text) == std::string::npos)
    if (!read_more()) return false;
  return true;
}

bool HttpClient::is_ended() {
  pollfd ready{socket_.get(), POLLIN, 0};
  char byte;
  while (poll(&ready, 1, 60'000) == 1)
    if (recv(socket_.get(), &byte, 1, 0) <= 0) return true;
  return false;
}

std::optional<HttpReply> HttpClient::receive() {
  if (!receive_until("\r\n\r\n")) return std::nullopt;
  HttpReply reply;
  const std::size_t end = received_.find("\r\n\r\n") + 4;
  reply.head = received_.substr(0, end);
  received_.erase(0, end);
  reply.status = std::stoi(reply.head.substr(9, 3));
  std::smatch length;
  if (std::regex_search(reply.head, length, std::regex("Content-Length: ([0-9]+)"))) {
    const std::size_t bytes = std::stoul(length[1]);
    while (received_.size() < bytes)
      if (!read_more()) return std::nullopt;
    reply.body = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return reply;
  }
  while (true) {  // chunks
    if (!receive_until("\r\n")) return std::nullopt;
    const std::size_t line = received_.find("\r\n") + 2;
    const std::size_t bytes = std::stoul(received_.substr(0, line), nullptr, 16);
    while (received_.size() < line + bytes + 2)
      if (!read_more()) return std::nullopt;
    reply.body += received_.substr(line, bytes);
    received_.erase(0, line + bytes + 2);
    if (bytes == 0) return reply;
  }
}

std::string post(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

}  // namespace kvhive::testing
