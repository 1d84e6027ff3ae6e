#include "tools/cli/inspector.hpp"

#include <algorithm>

namespace kvhive {

Expected<Inspector> Inspector::attach(const std::string& socket_path, Privilege privilege) {
  auto socket = connect_to_daemon(socket_path);
  if (!socket) return forward_error(socket);
  Message hello;
  hello.role = Role::inspector;
  hello.privileged = privilege == Privilege::tokens_too;
  hello.layout_hash = layout_hash({});
  auto welcome = say_hello(socket->get(), hello);
  if (!welcome) return forward_error(welcome);
  auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  return Inspector(std::move(*socket), std::move(*memory), welcome->message.get_text());
}

Expected<nlohmann::json> Inspector::status() const {
  return ask(MessageType::status_request, MessageType::status);
}

Expected<Inspector::Domains> Inspector::domains() const {
  auto status = this->status();
  if (!status) return forward_error(status);
  const nlohmann::json& told = (*status)["domains"];
  Domains domains{told["names"].get<std::vector<std::string>>(), std::nullopt};
  if (told["yours"].is_string()) {
    auto ours = domains.find(told["yours"].get<std::string>());
    if (!ours) return forward_error(ours);
    domains.ours = *ours;
  }
  return domains;
}

std::string Inspector::Domains::name(std::uint16_t domain) const {
  return domain < names.size() ? names[domain] : std::to_string(domain);
}

Expected<DomainId> Inspector::Domains::find(const std::string& wanted) const {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return DomainId{static_cast<std::uint16_t>(found - names.begin())};
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  return failure(Errc::not_found,
                 "domain: no client of '" + wanted + "' has come yet; these are known: " + known);
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
