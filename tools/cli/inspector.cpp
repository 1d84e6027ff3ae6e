#include "tools/cli/inspector.hpp"

namespace kvhive {

Expected<Inspector> Inspector::attach(const std::string& socket_path, Privilege privilege) {
  auto socket = connect_to_daemon(socket_path);
  if (!socket) return forward_error(socket);
  Message hello;
  hello.role = Role::inspector;
  hello.privileged = privilege == Privilege::tokens_too;
  auto welcome = say_hello(socket->get(), hello);
  if (!welcome) return forward_error(welcome);
  auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  return Inspector(std::move(*socket), std::move(*memory), welcome->message.get_text());
}

Expected<nlohmann::json> Inspector::status() const {
  return ask(MessageType::status_request, MessageType::status);
}

Expected<nlohmann::json> Inspector::repair() const {
  return ask(MessageType::repair_request, MessageType::repair_done);
}

Expected<nlohmann::json> Inspector::ask(MessageType question, MessageType wanted) const {
  Message request;
  request.type = question;
  if (auto sent = send_packet(socket_.get(), request); !sent) return forward_error(sent);
  auto answer = receive_answer(socket_.get());
  if (!answer) return forward_error(answer);
  if (*answer && (*answer)->message.type == MessageType::refused)
    return failure((*answer)->message.error, (*answer)->message.get_text());
  if (!*answer || (*answer)->message.type != wanted)
    return failure(Errc::peer_died, "the daemon hung up instead of answering");
  return nlohmann::json::parse((*answer)->tail);
}

}  // namespace kvhive
